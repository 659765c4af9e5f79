"""Images to patches, chats to tokens, a policy's folder to a policy."""
