'use strict';
// What mocha loads before a suite: how its requests reach the local cloud.
const http = require('http');
const https = require('https');
const {createRequire} = require('module');

// Programs that fetch without Google's client use no proxy of themselves.
const {HttpsProxyAgent} = createRequire(`${process.cwd()}/`)('https-proxy-agent');
https.globalAgent = new HttpsProxyAgent(process.env.HTTPS_PROXY);

// Google's test server makes HMAC keys of any account, Cloud Storage and the local cloud only of
// accounts that exist: the one that the tests make up is replaced.
const request = http.request;
http.request = (options, ...rest) => {
  if (typeof options.path === 'string') {
    options.path = options.path.replace(
      /(serviceAccountEmail=)[^&]*(?:@|%40)email\.com/,
      '$1my-service-account%40my-project-id.iam.gserviceaccount.com'
    );
  }
  return request(options, ...rest);
};
