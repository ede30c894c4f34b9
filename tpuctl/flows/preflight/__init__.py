"""Trials before anything is paid: a script rehearsed or compiled on this machine."""
