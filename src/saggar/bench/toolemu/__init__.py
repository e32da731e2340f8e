"""ToolEmu's procedure through our walls: an emulator model plays the tools, a judge model grades what was done."""
