"""What can be had where: quota, reservations, offers in zones, and what was granted before."""
