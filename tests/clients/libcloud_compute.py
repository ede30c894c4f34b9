"""Apache Libcloud's driver of Compute Engine, as its own guide uses it. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from libcloud.compute.providers import get_driver
from libcloud.compute.types import Provider

project, zone = sys.argv[1:]
credentials = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text("utf-8"))
# A token of an installed application, as the guide has it in a file, that has expired.
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
seen = {"size": driver.ex_get_size("e2-small").ram}
image = driver.ex_get_image_from_family("debian-12", ex_project_list=["debian-cloud"])
node = driver.create_node(
    "libcloud-vm", "e2-small", image, ex_metadata={"items": [{"key": "a", "value": "b"}]}
)
seen["state"] = str(node.state)
volume = driver.create_volume(10, "libcloud-disk")
seen["attached"] = driver.attach_volume(node, volume, ex_boot=False)
seen["nodes"] = [(one.name, one.extra["status"]) for one in driver.list_nodes()]
seen["stopped"] = driver.ex_stop_node(node)
seen["started"] = driver.ex_start_node(node)
seen["detached"] = driver.detach_volume(volume, ex_node=node)
seen["destroyed"] = [driver.destroy_volume(volume), driver.destroy_node(node)]
seen["left"] = [one.name for one in driver.list_nodes()]
print(json.dumps(seen))
