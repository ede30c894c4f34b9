"""Networks, firewall rules, subnetworks, routes and reserved addresses."""
