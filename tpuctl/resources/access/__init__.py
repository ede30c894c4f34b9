"""Who may do what: the machines' service account, its grants, and custom roles."""
