"""Apache Libcloud's driver of Compute Engine, used as in its guide. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from libcloud.compute.providers import get_driver
from libcloud.compute.types import Provider

project, zone = sys.argv[1:]
credentials = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text("utf-8"))
# An expired token of an installed application, stored in a file as in the guide.
token = {
    "access_token": "expired",
    "refresh_token": credentials["refresh_token"],
    "token_type": "Bearer",
    "expire_time": "2020-01-01T00:00:00Z",
}
file = Path("libcloud.json")
file.write_text(json.dumps(token), "utf-8")
driver = get_driver(Provider.GCE)(
    credentials["client_id"],
    credentials["client_secret"],
    auth_type="IA",
    credential_file=str(file),
    project=project,
    datacenter=zone,
)
results = {"size": driver.ex_get_size("e2-small").ram}
image = driver.ex_get_image_from_family("debian-12", ex_project_list=["debian-cloud"])
node = driver.create_node(
    "libcloud-vm", "e2-small", image, ex_metadata={"items": [{"key": "a", "value": "b"}]}
)
results["state"] = str(node.state)
volume = driver.create_volume(10, "libcloud-disk")
results["attached"] = driver.attach_volume(node, volume, ex_boot=False)
results["nodes"] = [(node.name, node.extra["status"]) for node in driver.list_nodes()]
results["stopped"] = driver.ex_stop_node(node)
results["started"] = driver.ex_start_node(node)
results["detached"] = driver.detach_volume(volume, ex_node=node)
results["destroyed"] = [driver.destroy_volume(volume), driver.destroy_node(node)]
results["left"] = [node.name for node in driver.list_nodes()]
print(json.dumps(results))
