"""What happens inside the small machines of the benchmark: one function a scene, each returns raw figures."""
