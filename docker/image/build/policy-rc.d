#!/bin/sh
# No daemon starts because its package was installed: roles start what they need.
exit 101
