"""Commands for stacks: init, plan, up, status, dashboard, down, orphans."""
