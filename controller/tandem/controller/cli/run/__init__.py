"""Commands that start something: an instance, the sandbox, the demo; and `tandem config`."""
