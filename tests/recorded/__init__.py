"""What Google really answered, as tables of facts, and the test that the local cloud does too."""
