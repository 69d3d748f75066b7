"""For every process of an engine on V2, spawned ones too: with this folder on PYTHONPATH Python imports it first."""

import v2

v2.prepare()
