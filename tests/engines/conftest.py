"""Options of the tests with a real engine. They need vLLM: see deploy/lib/python/engine.txt."""


def pytest_addoption(parser):
    parser.addoption("--model-cache", default=None, help="where models are kept")
    parser.addoption("--rounds", type=int, default=3, help="random workloads of each kind")


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: runs a real inference engine")
    config.addinivalue_line("markers", "long: takes minutes")
