"""The gateway: the OpenAI contract over HTTP and SSE."""
