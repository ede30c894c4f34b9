import json

ACCOUNT = json.loads("""{
  "type": "service_account",
  "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\\n-----END PRIVATE KEY-----\\n"
}""")
print(ACCOUNT["type"])
