"""The former name of cudriver.stack.facts, until the tests have the new one."""

from cudriver.stack.facts import *  # noqa: F403
