#!/usr/bin/env bash
echo "hello from $(hostname)"
