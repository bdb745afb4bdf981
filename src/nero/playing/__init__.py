"""Trained policies at play, to be looked at.

moves      whole games by a policy, action by action, with the screen in colour
animation  frames to a file of a kind that its suffix says
           gif  png  webp  mp4  how each kind is written, frame by frame
           stills  what they have in common: frames that stay, and the part of them that changes
"""
