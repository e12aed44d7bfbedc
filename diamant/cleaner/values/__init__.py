"""Values with a schema: the framings of serializers, sources of schemas, decoders."""
