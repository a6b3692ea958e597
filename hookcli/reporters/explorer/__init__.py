"""Explorer: reports on a screen, for the keyboard. Without torch; only `app` imports Textual."""
