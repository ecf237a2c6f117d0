#!/bin/sh
# Trains the reference model from nothing: about two hours on two cores. Run from the repository root: training/train.sh
set -eu
python=${PYTHON:-.venv/bin/python}

"$python" -m training.draw &
drawing=$!
"$python" -m training.train_vae --minutes "${VAE_MINUTES:-20}"
wait "$drawing"
"$python" -m training.encode
"$python" -m training.train_denoiser --minutes "${DENOISER_MINUTES:-65}"
"$python" -m training.train_decoder --minutes "${DECODER_MINUTES:-8}"
"$python" -m training.export
"$python" -m training.judge
"$python" -m training.grid
