"""The local cloud as its clients know it: started, controlled, its folder, images and variables."""
