"""Markup in square brackets and SSML: a text becomes parts, each with its voice, rate and pauses."""
