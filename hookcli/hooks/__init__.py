"""The only package that registers PyTorch's hooks: `HookSession` attaches them, and removes all of them again."""
