"""Core ML where there is none: a stand-in for the native half of coremltools, on the portable executor.

coremltools on a Mac is Python over one native module, `libcoremlpython`. Only that module is replaced, so MLModel,
CompiledMLModel, MLState and compile_model are coremltools' own, with their own manners: a refused package gives a
warning and a model without a proxy, which raises at its first prediction.

    installation.py   into this process (the fixture `core_ml`) and, through PYTHONPATH, into child processes
    child/            the folder that PYTHONPATH names: its sitecustomize.py runs first in every child
    binding.py        the native module: compile, load, predict, states
    inputs.py         arrays that outlive their prediction, and the crash of those that nothing else keeps
    faults.py         what goes wrong on demand: refusals, crashes, hangs, wrong numbers, delays

The binding differs from a Mac in what is worse than a Mac, so that a test finds it: results are read-only and strided,
and two predictions at once are an error. Refusals are printed dictionaries. fp16 results and states are rounded to fp16
after every operation, and come back as float32.
"""
