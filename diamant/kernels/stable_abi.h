/* CPython's stable ABI of 3.11, as far as the C that Cython writes uses it.

   It stands in for Python's own headers, which many machines do not have: so a build needs a C compiler alone, for any processor,
   and is the same wherever it runs. `setup.py` installs it under the names that Cython includes. Source: the stable ABI,
   docs.python.org/3.11/c-api/stable.html; a test compares it with the headers of a Python that has them. For machines of 64 bits. */

#ifndef Py_PYTHON_H
#define Py_PYTHON_H

#define _GNU_SOURCE /* memmem, as in pyconfig.h */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#if !defined(__LP64__) || Py_LIMITED_API != 0x030B0000
#error "for 64 bits and Py_LIMITED_API=0x030B0000 alone"
#endif

#define PY_MAJOR_VERSION 3
#define PY_MINOR_VERSION 11
#define PY_VERSION_HEX 0x030B0000

/* -- Types --------------------------------------------------------------------------------------------------------------- */

typedef ssize_t Py_ssize_t;
typedef Py_ssize_t Py_hash_t;
typedef uint32_t Py_UCS4;
typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;
typedef struct _frame PyFrameObject;
typedef struct _ts PyThreadState;
typedef struct _is PyInterpreterState;
typedef struct _longobject PyLongObject;
typedef void *PyThread_type_lock;
typedef enum { PyGILState_LOCKED, PyGILState_UNLOCKED } PyGILState_STATE;
typedef enum { PYGEN_RETURN = 0, PYGEN_ERROR = -1, PYGEN_NEXT = 1 } PySendResult;

struct _object {
    Py_ssize_t ob_refcnt;
    PyTypeObject *ob_type;
};
typedef struct {
    PyObject ob_base;
    Py_ssize_t ob_size;
} PyVarObject;
#define PyObject_HEAD PyObject ob_base;
#define PyObject_VAR_HEAD PyVarObject ob_base;
#define PyObject_HEAD_INIT(type) {1, type},

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

typedef PyObject *(*unaryfunc)(PyObject *);
typedef PyObject *(*binaryfunc)(PyObject *, PyObject *);
typedef PyObject *(*ternaryfunc)(PyObject *, PyObject *, PyObject *);
typedef PyObject *(*ssizeargfunc)(PyObject *, Py_ssize_t);
typedef PyObject *(*getattrofunc)(PyObject *, PyObject *);
typedef PyObject *(*reprfunc)(PyObject *);
typedef PyObject *(*allocfunc)(PyTypeObject *, Py_ssize_t);
typedef PyObject *(*newfunc)(PyTypeObject *, PyObject *, PyObject *);
typedef PyObject *(*getter)(PyObject *, void *);
typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef PyObject *(*PyCFunctionWithKeywords)(PyObject *, PyObject *, PyObject *);
typedef int (*inquiry)(PyObject *);
typedef int (*setter)(PyObject *, PyObject *, void *);
typedef int (*visitproc)(PyObject *, void *);
typedef int (*traverseproc)(PyObject *, visitproc, void *);
typedef void (*destructor)(PyObject *);
typedef void (*freefunc)(void *);
typedef void (*PyCapsule_Destructor)(PyObject *);

typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
typedef struct PyMemberDef {
    const char *name;
    int type;
    Py_ssize_t offset;
    int flags;
    const char *doc;
} PyMemberDef;
typedef struct PyGetSetDef {
    const char *name;
    getter get;
    setter set;
    const char *doc;
    void *closure;
} PyGetSetDef;
typedef struct {
    int slot;
    void *pfunc;
} PyType_Slot;
typedef struct {
    const char *name;
    int basicsize, itemsize;
    unsigned int flags;
    PyType_Slot *slots;
} PyType_Spec;
typedef struct PyModuleDef_Slot {
    int slot;
    void *value;
} PyModuleDef_Slot;
typedef struct {
    PyObject ob_base;
    PyObject *(*m_init)(void);
    Py_ssize_t m_index;
    PyObject *m_copy;
} PyModuleDef_Base;
typedef struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name, *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    PyModuleDef_Slot *m_slots;
    traverseproc m_traverse;
    inquiry m_clear;
    freefunc m_free;
} PyModuleDef;
#define PyModuleDef_HEAD_INIT {PyObject_HEAD_INIT(NULL) NULL, 0, NULL}

/* -- Functions ----------------------------------------------------------------------------------------------------------- */

int PyArg_ValidateKeywordArguments(PyObject *);
void PyBuffer_Release(Py_buffer *);
char *PyByteArray_AsString(PyObject *);
PyObject *PyByteArray_FromStringAndSize(const char *, Py_ssize_t);
Py_ssize_t PyByteArray_Size(PyObject *);
char *PyBytes_AsString(PyObject *);
int PyBytes_AsStringAndSize(PyObject *, char **, Py_ssize_t *);
PyObject *PyBytes_FromString(const char *);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
Py_ssize_t PyBytes_Size(PyObject *);
PyCFunction PyCFunction_GetFunction(PyObject *);
PyObject *PyCFunction_GetSelf(PyObject *);
PyObject *PyCMethod_New(PyMethodDef *, PyObject *, PyObject *, PyTypeObject *);
int PyCallable_Check(PyObject *);
const char *PyCapsule_GetName(PyObject *);
void *PyCapsule_GetPointer(PyObject *, const char *);
int PyCapsule_IsValid(PyObject *, const char *);
PyObject *PyCapsule_New(void *, const char *, PyCapsule_Destructor);
void _Py_Dealloc(PyObject *);
PyObject *PyDictProxy_New(PyObject *);
int PyDict_Contains(PyObject *, PyObject *);
int PyDict_DelItem(PyObject *, PyObject *);
PyObject *PyDict_GetItem(PyObject *, PyObject *);
PyObject *PyDict_GetItemString(PyObject *, const char *);
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
PyObject *PyDict_New(void);
int PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **);
int PyDict_SetItem(PyObject *, PyObject *, PyObject *);
int PyDict_SetItemString(PyObject *, const char *, PyObject *);
Py_ssize_t PyDict_Size(PyObject *);
int PyDict_Update(PyObject *, PyObject *);
void PyErr_Clear(void);
int PyErr_ExceptionMatches(PyObject *);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
PyObject *PyErr_Format(PyObject *, const char *, ...);
void PyErr_GetExcInfo(PyObject **, PyObject **, PyObject **);
int PyErr_GivenExceptionMatches(PyObject *, PyObject *);
PyObject *PyErr_NoMemory(void);
void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);
PyObject *PyErr_Occurred(void);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
void PyErr_SetExcInfo(PyObject *, PyObject *, PyObject *);
void PyErr_SetHandledException(PyObject *);
void PyErr_SetNone(PyObject *);
void PyErr_SetObject(PyObject *, PyObject *);
void PyErr_SetString(PyObject *, const char *);
int PyErr_WarnEx(PyObject *, const char *, Py_ssize_t);
int PyErr_WarnFormat(PyObject *, Py_ssize_t, const char *, ...);
PyObject *PyEval_EvalCode(PyObject *, PyObject *, PyObject *);
PyObject *PyEval_GetBuiltins(void);
void PyEval_RestoreThread(PyThreadState *);
PyThreadState *PyEval_SaveThread(void);
void PyException_SetCause(PyObject *, PyObject *);
int PyException_SetTraceback(PyObject *, PyObject *);
PyGILState_STATE PyGILState_Ensure(void);
void PyGILState_Release(PyGILState_STATE);
PyObject *PyImport_AddModule(const char *);
PyObject *PyImport_GetModule(PyObject *);
PyObject *PyImport_GetModuleDict(void);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyImport_ImportModuleLevelObject(PyObject *, PyObject *, PyObject *, PyObject *, int);
int PyIndex_Check(PyObject *);
PyInterpreterState *PyInterpreterState_Get(void);
int64_t PyInterpreterState_GetID(PyInterpreterState *);
int PyList_Append(PyObject *, PyObject *);
PyObject *PyList_AsTuple(PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
PyObject *PyList_New(Py_ssize_t);
int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
int PyList_SetSlice(PyObject *, Py_ssize_t, Py_ssize_t, PyObject *);
Py_ssize_t PyList_Size(PyObject *);
long PyLong_AsLong(PyObject *);
long long PyLong_AsLongLong(PyObject *);
Py_ssize_t PyLong_AsSsize_t(PyObject *);
unsigned long PyLong_AsUnsignedLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyLong_FromLong(long);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromSize_t(size_t);
PyObject *PyLong_FromSsize_t(Py_ssize_t);
PyObject *PyLong_FromUnsignedLong(unsigned long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
int PyMapping_Check(PyObject *);
void PyMem_Free(void *);
void *PyMem_Malloc(size_t);
void *PyMem_Realloc(void *, size_t);
PyObject *PyModuleDef_Init(PyModuleDef *);
PyObject *PyModule_GetDict(PyObject *);
const char *PyModule_GetName(PyObject *);
PyObject *PyModule_NewObject(PyObject *);
PyObject *PyNumber_Add(PyObject *, PyObject *);
PyObject *PyNumber_And(PyObject *, PyObject *);
int PyNumber_Check(PyObject *);
PyObject *PyNumber_InPlaceAdd(PyObject *, PyObject *);
PyObject *PyNumber_Index(PyObject *);
PyObject *PyNumber_Invert(PyObject *);
PyObject *PyNumber_Long(PyObject *);
PyObject *PyNumber_Multiply(PyObject *, PyObject *);
PyObject *PyNumber_Rshift(PyObject *, PyObject *);
int PyOS_snprintf(char *, size_t, const char *, ...) __attribute__((format(printf, 3, 4)));
PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *_PyObject_CallFunction_SizeT(PyObject *, const char *, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
PyObject *_PyObject_CallMethod_SizeT(PyObject *, const char *, const char *, ...);
PyObject *PyObject_CallObject(PyObject *, PyObject *);
void PyObject_ClearWeakRefs(PyObject *);
PyObject *PyObject_Format(PyObject *, PyObject *);
void PyObject_Free(void *);
void PyObject_GC_Del(void *);
PyObject *_PyObject_GC_New(PyTypeObject *);
void PyObject_GC_Track(void *);
void PyObject_GC_UnTrack(void *);
PyObject *PyObject_GenericGetAttr(PyObject *, PyObject *);
PyObject *PyObject_GenericGetDict(PyObject *, void *);
int PyObject_GenericSetDict(PyObject *, PyObject *, void *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_GetAttrString(PyObject *, const char *);
int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
PyObject *PyObject_GetItem(PyObject *, PyObject *);
int PyObject_HasAttr(PyObject *, PyObject *);
Py_hash_t PyObject_Hash(PyObject *);
int PyObject_IsSubclass(PyObject *, PyObject *);
int PyObject_IsTrue(PyObject *);
void *PyObject_Malloc(size_t);
PyObject *PyObject_Repr(PyObject *);
PyObject *PyObject_RichCompare(PyObject *, PyObject *, int);
int PyObject_RichCompareBool(PyObject *, PyObject *, int);
int PyObject_SetAttr(PyObject *, PyObject *, PyObject *);
int PyObject_SetAttrString(PyObject *, const char *, PyObject *);
int PyObject_SetItem(PyObject *, PyObject *, PyObject *);
PyObject *PyObject_Str(PyObject *);
PyObject *PySequence_GetItem(PyObject *, Py_ssize_t);
PyObject *PySequence_Repeat(PyObject *, Py_ssize_t);
int PySequence_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyObject *PySequence_Tuple(PyObject *);
PyObject *PySlice_New(PyObject *, PyObject *, PyObject *);
PyObject *PySys_GetObject(const char *);
int PyThread_acquire_lock(PyThread_type_lock, int);
PyThread_type_lock PyThread_allocate_lock(void);
void PyThread_free_lock(PyThread_type_lock);
void PyThread_release_lock(PyThread_type_lock);
int PyTraceBack_Here(PyFrameObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
PyObject *PyTuple_GetSlice(PyObject *, Py_ssize_t, Py_ssize_t);
PyObject *PyTuple_New(Py_ssize_t);
PyObject *PyTuple_Pack(Py_ssize_t, ...);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
Py_ssize_t PyTuple_Size(PyObject *);
PyObject *PyType_FromModuleAndSpec(PyObject *, PyType_Spec *, PyObject *);
unsigned long PyType_GetFlags(PyTypeObject *);
PyObject *PyType_GetQualName(PyTypeObject *);
void *PyType_GetSlot(PyTypeObject *, int);
int PyType_IsSubtype(PyTypeObject *, PyTypeObject *);
void PyType_Modified(PyTypeObject *);
int PyType_Ready(PyTypeObject *);
PyObject *PyUnicode_AsASCIIString(PyObject *);
int PyUnicode_Compare(PyObject *, PyObject *);
int PyUnicode_CompareWithASCIIString(PyObject *, const char *);
PyObject *PyUnicode_Concat(PyObject *, PyObject *);
PyObject *PyUnicode_Decode(const char *, Py_ssize_t, const char *, const char *);
PyObject *PyUnicode_DecodeASCII(const char *, Py_ssize_t, const char *);
PyObject *PyUnicode_DecodeLatin1(const char *, Py_ssize_t, const char *);
PyObject *PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *);
Py_ssize_t PyUnicode_FindChar(PyObject *, Py_UCS4, Py_ssize_t, Py_ssize_t, int);
PyObject *PyUnicode_FromFormat(const char *, ...);
PyObject *PyUnicode_FromOrdinal(int);
PyObject *PyUnicode_FromString(const char *);
PyObject *PyUnicode_FromStringAndSize(const char *, Py_ssize_t);
PyObject *PyUnicode_InternFromString(const char *);
void PyUnicode_InternInPlace(PyObject **);
PyObject *PyUnicode_Join(PyObject *, PyObject *);
PyObject *PyUnicode_Substring(PyObject *, Py_ssize_t, Py_ssize_t);
PyObject *Py_CompileString(const char *, const char *, int);
int Py_EnterRecursiveCall(const char *);
void Py_FatalError(const char *) __attribute__((noreturn));
void Py_LeaveRecursiveCall(void);

/* -- Objects ------------------------------------------------------------------------------------------------------------- */

extern PyTypeObject
    PyBaseObject_Type, PyBool_Type, PyByteArray_Type, PyBytes_Type, PyCFunction_Type, PyDict_Type, PyFloat_Type,
    PyList_Type, PyLong_Type, PySlice_Type, PyTraceBack_Type, PyTuple_Type, PyType_Type, PyUnicode_Type;
extern PyObject
    *PyExc_AssertionError, *PyExc_AttributeError, *PyExc_BufferError, *PyExc_DeprecationWarning, *PyExc_Exception,
    *PyExc_ImportError, *PyExc_IndexError, *PyExc_KeyError, *PyExc_MemoryError, *PyExc_NameError,
    *PyExc_NotImplementedError, *PyExc_OverflowError, *PyExc_RuntimeError, *PyExc_RuntimeWarning,
    *PyExc_StopIteration, *PyExc_SystemError, *PyExc_TypeError, *PyExc_UnboundLocalError, *PyExc_ValueError,
    *PyExc_ZeroDivisionError;
extern PyObject _Py_NoneStruct;
extern PyLongObject _Py_FalseStruct, _Py_TrueStruct;
extern const unsigned long Py_Version;
#define Py_None (&_Py_NoneStruct)
#define Py_False ((PyObject *)&_Py_FalseStruct)
#define Py_True ((PyObject *)&_Py_TrueStruct)

/* -- Constants ----------------------------------------------------------------------------------------------------------- */

#define PY_INT64_T int64_t
#define PY_UINT64_T uint64_t
#define PY_LONG_LONG long long
#define PY_SSIZE_T_MAX SSIZE_MAX
#define PY_SSIZE_T_MIN (-PY_SSIZE_T_MAX - 1)
#define SIZEOF_INT 4
#define SIZEOF_LONG 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_VOID_P 8

#define METH_VARARGS 0x0001
#define METH_KEYWORDS 0x0002
#define METH_NOARGS 0x0004
#define METH_O 0x0008
#define METH_CLASS 0x0010
#define METH_STATIC 0x0020
#define METH_COEXIST 0x0040
#define METH_FASTCALL 0x0080
#define METH_METHOD 0x0200

#define PyBUF_WRITABLE 0x0001
#define PyBUF_FORMAT 0x0004
#define PyBUF_ND 0x0008
#define PyBUF_STRIDES (0x0010 | PyBUF_ND)
#define PyBUF_C_CONTIGUOUS (0x0020 | PyBUF_STRIDES)
#define PyBUF_F_CONTIGUOUS (0x0040 | PyBUF_STRIDES)
#define PyBUF_ANY_CONTIGUOUS (0x0080 | PyBUF_STRIDES)
#define PyBUF_INDIRECT (0x0100 | PyBUF_STRIDES)
#define PyBUF_RECORDS (PyBUF_STRIDES | PyBUF_WRITABLE | PyBUF_FORMAT)
#define PyBUF_RECORDS_RO (PyBUF_STRIDES | PyBUF_FORMAT)

#define Py_LT 0
#define Py_EQ 2
#define Py_NE 3
#define Py_eval_input 258
#define READONLY 1
#define T_OBJECT 6
#define T_OBJECT_EX 16
#define T_PYSSIZET 19

#define Py_bf_getbuffer 1
#define Py_bf_releasebuffer 2
#define Py_mod_create 1
#define Py_mod_exec 2
#define Py_mp_ass_subscript 3
#define Py_mp_length 4
#define Py_mp_subscript 5
#define Py_sq_ass_item 39
#define Py_sq_item 44
#define Py_sq_length 45
#define Py_tp_alloc 47
#define Py_tp_base 48
#define Py_tp_bases 49
#define Py_tp_call 50
#define Py_tp_clear 51
#define Py_tp_dealloc 52
#define Py_tp_descr_get 54
#define Py_tp_doc 56
#define Py_tp_getattro 58
#define Py_tp_init 60
#define Py_tp_methods 64
#define Py_tp_new 65
#define Py_tp_repr 66
#define Py_tp_setattro 69
#define Py_tp_str 70
#define Py_tp_traverse 71
#define Py_tp_members 72
#define Py_tp_getset 73
#define Py_tp_free 74

#define Py_TPFLAGS_DEFAULT 0
#define Py_TPFLAGS_HAVE_FINALIZE (1UL << 0)
#define Py_TPFLAGS_DISALLOW_INSTANTIATION (1UL << 7)
#define Py_TPFLAGS_IMMUTABLETYPE (1UL << 8)
#define Py_TPFLAGS_HEAPTYPE (1UL << 9)
#define Py_TPFLAGS_BASETYPE (1UL << 10)
#define Py_TPFLAGS_HAVE_GC (1UL << 14)
#define Py_TPFLAGS_METHOD_DESCRIPTOR (1UL << 17)
#define Py_TPFLAGS_HAVE_VERSION_TAG (1UL << 18)
#define Py_TPFLAGS_IS_ABSTRACT (1UL << 20)
#define Py_TPFLAGS_LONG_SUBCLASS (1UL << 24)
#define Py_TPFLAGS_LIST_SUBCLASS (1UL << 25)
#define Py_TPFLAGS_TUPLE_SUBCLASS (1UL << 26)
#define Py_TPFLAGS_BYTES_SUBCLASS (1UL << 27)
#define Py_TPFLAGS_UNICODE_SUBCLASS (1UL << 28)
#define Py_TPFLAGS_DICT_SUBCLASS (1UL << 29)
#define Py_TPFLAGS_BASE_EXC_SUBCLASS (1UL << 30)
#define Py_TPFLAGS_TYPE_SUBCLASS (1UL << 31)

/* -- Macros -------------------------------------------------------------------------------------------------------------- */

#define PyAPI_FUNC(type) extern type
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
#define PyDoc_STR(text) text
#define PyDoc_STRVAR(name, text) static const char name[] = text
#define Py_UNUSED(name) _unused_##name __attribute__((unused))
#define Py_UNREACHABLE() __builtin_unreachable()

#define Py_REFCNT(object) (((PyObject *)(object))->ob_refcnt)
#define Py_TYPE(object) (((PyObject *)(object))->ob_type)
#define Py_IS_TYPE(object, type) (Py_TYPE(object) == (type))
#define Py_SET_REFCNT(object, count) (Py_REFCNT(object) = (count))
#define Py_SET_TYPE(object, type) (Py_TYPE(object) = (type))
#define Py_INCREF(object) count_up((PyObject *)(object))
#define Py_DECREF(object) count_down((PyObject *)(object))
#define Py_XINCREF(object) ((object) ? Py_INCREF(object) : (void)0)
#define Py_XDECREF(object) ((object) ? Py_DECREF(object) : (void)0)
#define Py_CLEAR(place)                           \
    do {                                          \
        PyObject *_cleared = (PyObject *)(place); \
        (place) = NULL;                           \
        Py_XDECREF(_cleared);                     \
    } while (0)
#define Py_VISIT(object)                                               \
    do {                                                               \
        int _result = (object) ? visit((PyObject *)(object), arg) : 0; \
        if (_result) return _result;                                   \
    } while (0)

static inline void count_up(PyObject *object) { object->ob_refcnt++; }
static inline void count_down(PyObject *object) {
    if (--object->ob_refcnt == 0) _Py_Dealloc(object);
}
static inline PyObject *one_more(PyObject *object) {
    Py_XINCREF(object);
    return object;
}
#define Py_NewRef(object) one_more((PyObject *)(object))
#define Py_XNewRef(object) one_more((PyObject *)(object))
#define Py_RETURN_NONE return Py_NewRef(Py_None)
#define Py_RETURN_FALSE return Py_NewRef(Py_False)
#define Py_RETURN_TRUE return Py_NewRef(Py_True)

#define PyCFunction_New(method, self) PyCFunction_NewEx(method, self, NULL)
#define PyCFunction_NewEx(method, self, module) PyCMethod_New(method, self, module, NULL)
#define PyObject_CallFunction _PyObject_CallFunction_SizeT
#define PyObject_CallMethod _PyObject_CallMethod_SizeT
#define PyObject_GC_New(type, of) ((type *)_PyObject_GC_New(of))
#define PyObject_TypeCheck(object, type) (Py_IS_TYPE(object, type) || PyType_IsSubtype(Py_TYPE(object), type))
#define PyType_HasFeature(type, flag) ((PyType_GetFlags(type) & (flag)) != 0)
#define PyType_IS_GC(type) PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC)
#define IS_A(object, flag) PyType_HasFeature(Py_TYPE(object), flag)
#define PyBytes_Check(object) IS_A(object, Py_TPFLAGS_BYTES_SUBCLASS)
#define PyDict_Check(object) IS_A(object, Py_TPFLAGS_DICT_SUBCLASS)
#define PyExceptionInstance_Check(object) IS_A(object, Py_TPFLAGS_BASE_EXC_SUBCLASS)
#define PyLong_Check(object) IS_A(object, Py_TPFLAGS_LONG_SUBCLASS)
#define PyTuple_Check(object) IS_A(object, Py_TPFLAGS_TUPLE_SUBCLASS)
#define PyType_Check(object) IS_A(object, Py_TPFLAGS_TYPE_SUBCLASS)
#define PyUnicode_Check(object) IS_A(object, Py_TPFLAGS_UNICODE_SUBCLASS)
#define PyExceptionClass_Check(object) \
    (PyType_Check(object) && PyType_HasFeature((PyTypeObject *)(object), Py_TPFLAGS_BASE_EXC_SUBCLASS))
#define PyByteArray_Check(object) PyObject_TypeCheck(object, &PyByteArray_Type)
#define PyCFunction_Check(object) PyObject_TypeCheck(object, &PyCFunction_Type)
#define PyCFunction_CheckExact(object) Py_IS_TYPE(object, &PyCFunction_Type)
#define PyBytes_CheckExact(object) Py_IS_TYPE(object, &PyBytes_Type)
#define PyDict_CheckExact(object) Py_IS_TYPE(object, &PyDict_Type)
#define PyFloat_CheckExact(object) Py_IS_TYPE(object, &PyFloat_Type)
#define PyList_CheckExact(object) Py_IS_TYPE(object, &PyList_Type)
#define PyLong_CheckExact(object) Py_IS_TYPE(object, &PyLong_Type)
#define PySlice_Check(object) Py_IS_TYPE(object, &PySlice_Type)
#define PyTraceBack_Check(object) Py_IS_TYPE(object, &PyTraceBack_Type)
#define PyTuple_CheckExact(object) Py_IS_TYPE(object, &PyTuple_Type)
#define PyUnicode_CheckExact(object) Py_IS_TYPE(object, &PyUnicode_Type)

#endif
