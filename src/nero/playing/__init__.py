"""Trained policies at play, to be looked at.

moves      whole games by a policy, action by action, with the screen in colour
animation  frames to a file of a kind that its suffix says
           pictures  gif, png and webp, by Pillow
           mp4       by ffmpeg
"""
