'use strict';
// Google's five clients for Node, used as in their guides. Prints one line of JSON.
const {InstancesClient, ZoneOperationsClient} = require('@google-cloud/compute').v1;
const {ProjectsClient} = require('@google-cloud/resource-manager').v3;
const {ServiceUsageClient} = require('@google-cloud/service-usage').v1;
const {Storage} = require('@google-cloud/storage');
const {TpuClient} = require('@google-cloud/tpu').v2;

const [project, zone] = process.argv.slice(2);
const parent = `projects/${project}/locations/${zone}`;

// The Compute Engine client supports only REST, without proxies: docs/local-cloud.md.
const local = new URL(process.env.STORAGE_EMULATOR_HOST);
const direct = {protocol: 'http', apiEndpoint: local.hostname, port: Number(local.port)};

async function main() {
  const results = {};
  const [details] = await new ProjectsClient().getProject({name: `projects/${project}`});
  results.project = details.projectId;

  const usage = new ServiceUsageClient();
  const [enabling] = await usage.enableService({name: `projects/${project}/services/tpu.googleapis.com`});
  await enabling.promise();
  const [service] = await usage.getService({name: `projects/${project}/services/tpu.googleapis.com`});
  results.service = service.state;

  const [bucket] = await new Storage().createBucket(`${project}-node`);
  await bucket.file('resumable').save('line\r', {resumable: true});
  await bucket.file('multipart').save('line\r', {resumable: false});
  await bucket.file('large').save(Buffer.alloc(5_000_001, 'x'));
  const [files] = await bucket.getFiles();
  results.objects = files.map(file => [file.name, Number(file.metadata.size)]);
  results.contents = [];
  for (const name of ['resumable', 'multipart']) {
    results.contents.push((await bucket.file(name).download())[0].toString());
  }
  await bucket.deleteFiles();
  await bucket.delete();

  const tpus = new TpuClient();
  const node = {acceleratorType: 'v2-8', runtimeVersion: 'tpu-ubuntu2204-base'};
  const [creating] = await tpus.createNode({parent, nodeId: 'node-tpu', node});
  await creating.promise();
  results.tpu = (await tpus.getNode({name: `${parent}/nodes/node-tpu`}))[0].state;
  const [deleting] = await tpus.deleteNode({name: `${parent}/nodes/node-tpu`});
  await deleting.promise();

  const instances = new InstancesClient(direct);
  const operations = new ZoneOperationsClient(direct);
  async function finish(started) {
    let operation = started.latestResponse;
    while (operation.status !== 'DONE') {
      [operation] = await operations.wait({operation: operation.name, project, zone});
    }
  }
  const instanceResource = {
    name: 'node-vm',
    machineType: `zones/${zone}/machineTypes/e2-small`,
    disks: [{boot: true, autoDelete: true, initializeParams: {
      sourceImage: 'projects/debian-cloud/global/images/family/debian-12'}}],
    networkInterfaces: [{network: 'global/networks/default'}],
  };
  await finish((await instances.insert({project, zone, instanceResource}))[0]);
  results.instance = (await instances.get({project, zone, instance: 'node-vm'}))[0].status;
  await finish((await instances.delete({project, zone, instance: 'node-vm'}))[0]);
  console.log(JSON.stringify(results));
}

main().catch(error => {
  console.error(error);
  process.exitCode = 1;
});
