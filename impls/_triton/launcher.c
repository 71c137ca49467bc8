/* Launches all kernels of a plan in one call: see together.py, which compiles this file.

A program is a list of kernels with everything that is the same in each call. A call brings the stream and the
addresses of its tensors ("places"); they go into copies of the parameters on its own stack, so that any number
of threads may run a program at once. Every parameter takes a word of 8 bytes, of which the driver reads as
many as the kernel declares: this is for little-endian machines. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 512, MOST_PLACES = 512 };

typedef struct {
  int (*launch)(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                unsigned shared, void *stream, void **parameters, void **extra);
  int (*get_context)(void **context);
  int (*retain_context)(void **context, int device);
  int (*set_context)(void *context);
  int (*describe)(int code, const char **text);
} Driver;

/* The parameter `word` is the address of `place`, moved by `offset` bytes. */
typedef struct {
  uint64_t word, place, offset;
} Address;

typedef struct {
  void *function;
  unsigned grid[3], threads, shared;
  Py_ssize_t words, addresses;
  uint64_t *word; /* owned; the addresses lie behind the words */
  Address *address;
} Kernel;

typedef struct {
  Driver driver;
  int device;
  Py_ssize_t kernels, places;
  Kernel *kernel;
} Program;

static const char *NAME = "ssmperf.program";

static void release(Program *program) {
  for (Py_ssize_t at = 0; at < program->kernels; at++)
    free(program->kernel[at].word);
  free(program->kernel);
  free(program);
}

static void release_capsule(PyObject *capsule) { release(PyCapsule_GetPointer(capsule, NAME)); }

static int read_kernel(PyObject *described, Kernel *kernel, Py_ssize_t places) {
  unsigned long long function;
  const char *words, *addresses;
  Py_ssize_t words_size, addresses_size;
  if (!PyArg_ParseTuple(described, "K(III)IIy#y#", &function, &kernel->grid[0], &kernel->grid[1],
                        &kernel->grid[2], &kernel->threads, &kernel->shared, &words, &words_size, &addresses,
                        &addresses_size))
    return 0;
  kernel->function = (void *)(uintptr_t)function;
  kernel->words = words_size / (Py_ssize_t)sizeof(uint64_t);
  kernel->addresses = addresses_size / (Py_ssize_t)sizeof(Address);
  if (kernel->words > MOST_WORDS) {
    PyErr_Format(PyExc_ValueError, "a kernel with more than %d parameters", MOST_WORDS);
    return 0;
  }
  kernel->word = malloc(words_size + addresses_size + 1);
  if (kernel->word == NULL) {
    PyErr_NoMemory();
    return 0;
  }
  kernel->address = (Address *)(kernel->word + kernel->words);
  memcpy(kernel->word, words, kernel->words * sizeof(uint64_t));
  memcpy(kernel->address, addresses, kernel->addresses * sizeof(Address));
  for (Py_ssize_t at = 0; at < kernel->addresses; at++)
    if ((Py_ssize_t)kernel->address[at].word >= kernel->words ||
        (Py_ssize_t)kernel->address[at].place >= places) {
      PyErr_SetString(PyExc_ValueError, "an address outside the parameters or places");
      return 0;
    }
  return 1;
}

/* program((launch, get_context, retain_context, set_context, describe), device, places, kernels) */
static PyObject *make_program(PyObject *self, PyObject *given) {
  unsigned long long functions[5];
  int device;
  Py_ssize_t places;
  PyObject *kernels;
  if (!PyArg_ParseTuple(given, "(KKKKK)inO!", &functions[0], &functions[1], &functions[2], &functions[3],
                        &functions[4], &device, &places, &PyList_Type, &kernels))
    return NULL;
  if (places > MOST_PLACES)
    return PyErr_Format(PyExc_ValueError, "more than %d tensors", MOST_PLACES);
  Program *program = calloc(1, sizeof(Program));
  if (program == NULL)
    return PyErr_NoMemory();
  void *pointers[5];
  for (int at = 0; at < 5; at++)
    pointers[at] = (void *)(uintptr_t)functions[at];
  memcpy(&program->driver, pointers, sizeof(Driver));
  program->device = device;
  program->places = places;
  program->kernels = PyList_GET_SIZE(kernels);
  program->kernel = calloc(program->kernels ? program->kernels : 1, sizeof(Kernel));
  if (program->kernel == NULL) {
    program->kernels = 0;
    release(program);
    return PyErr_NoMemory();
  }
  for (Py_ssize_t at = 0; at < program->kernels; at++)
    if (!read_kernel(PyList_GET_ITEM(kernels, at), &program->kernel[at], places)) {
      release(program);
      return NULL;
    }
  return PyCapsule_New(program, NAME, release_capsule);
}

/* A thread that has not used the device yet has no context. */
static int bind(const Program *program) {
  void *context = NULL;
  int code = program->driver.get_context(&context);
  if (code == 0 && context == NULL) {
    code = program->driver.retain_context(&context, program->device);
    if (code == 0)
      code = program->driver.set_context(context);
  }
  return code;
}

static int launch(const Driver *driver, const Kernel *kernel, const uint64_t *bases, void *stream) {
  uint64_t word[MOST_WORDS];
  void *parameters[MOST_WORDS];
  memcpy(word, kernel->word, kernel->words * sizeof(uint64_t));
  for (Py_ssize_t at = 0; at < kernel->addresses; at++) {
    const Address *address = &kernel->address[at];
    word[address->word] = bases[address->place] + address->offset;
  }
  for (Py_ssize_t at = 0; at < kernel->words; at++)
    parameters[at] = &word[at];
  return driver->launch(kernel->function, kernel->grid[0], kernel->grid[1], kernel->grid[2], kernel->threads, 1,
                        1, kernel->shared, stream, parameters, NULL);
}

/* run(program, stream, places): places is a list of addresses, None where there is no tensor */
static PyObject *run(PyObject *self, PyObject *const *given, Py_ssize_t count) {
  if (count != 3 || !PyList_Check(given[2])) {
    PyErr_SetString(PyExc_TypeError, "run takes a program, a stream and a list of addresses");
    return NULL;
  }
  const Program *program = PyCapsule_GetPointer(given[0], NAME);
  if (program == NULL)
    return NULL;
  if (PyList_GET_SIZE(given[2]) != program->places)
    return PyErr_Format(PyExc_ValueError, "%zd addresses of %zd", PyList_GET_SIZE(given[2]), program->places);
  uint64_t bases[MOST_PLACES];
  for (Py_ssize_t at = 0; at < program->places; at++) {
    PyObject *address = PyList_GET_ITEM(given[2], at);
    bases[at] = address == Py_None ? 0 : PyLong_AsUnsignedLongLong(address);
  }
  void *stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(given[1]);
  if (PyErr_Occurred())
    return NULL;
  int code;
  Py_BEGIN_ALLOW_THREADS;
  code = bind(program);
  for (Py_ssize_t at = 0; code == 0 && at < program->kernels; at++)
    code = launch(&program->driver, &program->kernel[at], bases, stream);
  Py_END_ALLOW_THREADS;
  if (code != 0) {
    const char *text = NULL;
    program->driver.describe(code, &text);
    return PyErr_Format(PyExc_RuntimeError, "CUDA cannot launch it: %s", text ? text : "unknown error");
  }
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"program", make_program, METH_VARARGS, "Describe kernels to launch one after another."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "Launch the kernels of a program."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "ssmperf_launcher", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_ssmperf_launcher(void) { return PyModule_Create(&module); }
