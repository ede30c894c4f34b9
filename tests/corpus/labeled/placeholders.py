import os

API_KEY = "YOUR_API_KEY"
TOKEN = "<your token here>"
PASSWORD = ""
HF_TOKEN = "hf_..."
os.environ.setdefault("WANDB_API_KEY", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
SECRET_NAME = "projects/my-project/secrets/wandb/versions/latest"
tokenizer = "bert-base-uncased"
pad_token = "[PAD]"
mask_token = "[MASK]"
sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
revision = "86b5e0934494bd15c9632b12f734a8a67f723594"
print(tokenizer, pad_token, mask_token, sha256, revision)
