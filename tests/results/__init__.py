"""Large results, from the service that keeps them to the client that fetches them."""
