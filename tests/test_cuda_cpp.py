"""Compiling CUDA C++ without a GPU, and what is checked before a launch."""

import ctypes
import struct
import threading
import types

import numpy as np
import pytest
import torch

from tilekit import cubin, cuda_cpp, trial
from tilekit.cuda_cpp import CompileError, Kernel, Parameter, parameters

try:
    cuda_cpp.architectures()
    NVRTC = None
except RuntimeError as error:
    NVRTC = str(error)
needs_nvrtc = pytest.mark.skipif(NVRTC is not None, reason=f"{NVRTC}")

SCALE = """
// __global__ void not_this(int a) {}
extern "C" __global__ void __launch_bounds__(256)
scale(const float* __restrict__ x, float *out, long long n, float by /* the factor */, unsigned char shift) {
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) out[i] = x[i] * by + shift;
}
"""
X, OUT = torch.ones(4), torch.empty(4)
NEGATED = torch.complex(X, X).conj().imag


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    cuda_cpp._compiled.cache_clear()
    return tmp_path / "cuda_cpp"


class TestSignature:
    def test_it_is_read_from_the_source(self):
        assert [(p.name, p.type, p.is_pointer) for p in parameters(SCALE, "scale")] == [
            ("x", "float", True), ("out", "float", True), ("n", "long long", False), ("by", "float", False),
            ("shift", "unsigned char", False),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("declared", "options", "type"),
        [
            ("unsigned n", (), "unsigned int"),
            ("const uint64_t n", (), "unsigned long long"),
            ("size_t n", (), "unsigned long long"),
            ("INDEX n", ("-DINDEX=long long",), "long long"),
            ("INDEX n", ("-DOTHER=int", "--define-macro=INDEX=unsigned"), "unsigned int"),
            ("half n", (), "__half"),
            ("mine n", (), "double"),
            ("defined n", (), "short"),
            ("unheard_of n", (), "unheard_of"),
            ("int unsigned n", (), "unsigned int"),
            ("long unsigned int n", (), "unsigned long"),
            ("signed char n", (), "signed char"),
            ("ns::mine n", (), "double"),
            ("struct pair n", (), "pair"),
            ("fixed n", (), "float"),
            ("int n = 3", (), "int"),
            ("either n", (), "either"),
            ("either n", ("-Deither=float",), "float"),
        ],
    )
    def test_names_of_types_are_resolved(self, declared, options, type):
        source = f'typedef const float fixed;\n#if A\n#define either float\n#else\n#define either double\n#endif\nusing mine = yours; typedef double yours;\n#define defined short\nextern "C" __global__ void f({declared}) {{}}'
        assert parameters(source, "f", options) == (Parameter("n", type, False),)

    @pytest.mark.parametrize(
        ("declared", "type"),
        [
            ("float x[4]", "float"),
            ("float const* const __restrict__ x", "float"),
            ("pointer x", "float"),
            ("P x", "double"),
            ("float** x", "float*"),
            ("pair<int, float>* x", "pair < int , float >"),
        ],
    )
    def test_pointers(self, declared, type):
        source = f'typedef const float* pointer;\nextern "C" __global__ void f({declared}, int n) {{}}'
        first, last = parameters(source, "f", ["-DP=double*"])
        assert first == Parameter("x", type, True) and last == Parameter("n", "int", False)

    @pytest.mark.parametrize(
        "declaration",
        [
            'extern "C" void __global__ f(int n) {}',
            'extern "C" __global__ void __launch_bounds__((64) * (2)) f(int n) {}',
            'extern "C" { __global__ void g() {} __global__ void f(int n) {} }',
            'extern "C" __global__ void f(int); __global__ void f(int n) {}',
        ],
    )
    def test_ways_to_declare(self, declaration):
        assert parameters(declaration, "f") == (Parameter("n", "int", False),)

    @pytest.mark.parametrize("kernel", ["template <class V> __global__ void f(V n) {}", "__global__ void f(int n) {}"])
    def test_another_kernels_linkage_does_not_count(self, kernel):
        for other in ('extern "C" __global__ void g() {}', 'extern "C" { __global__ void g() {} }'):
            with pytest.raises(ValueError, match="'f' must be extern \"C\""):
                Kernel(f"{other}\n{kernel}", "f")

    def test_two_declarations_that_differ_are_refused(self):
        source = (
            '#if A\nextern "C" __global__ void f(float n) {}\n#else\nextern "C" __global__ void f(double n) {}\n#endif'
        )
        with pytest.raises(ValueError, match="'f' is declared with different parameters"):
            Kernel(source, "f")

    @pytest.mark.parametrize("inside", ["", "void"])
    def test_a_kernel_may_take_nothing(self, inside):
        assert parameters(f'extern "C" __global__ void f({inside}) {{}}', "f") == ()

    def test_a_kernel_that_is_not_there(self):
        with pytest.raises(ValueError, match="no kernel 'skale'; it has: scale"):
            Kernel(SCALE, "skale")

    def test_a_mangled_name_is_refused(self):
        with pytest.raises(ValueError, match='must be extern "C"'):
            Kernel("__global__ void f(int n) {}", "f")


class TestArguments:
    def test_numbers_take_the_parameters_width(self):
        """A Python float is 8 bytes; passed to a parameter of 4 it would be read as another number."""
        kernel = Kernel(SCALE, "scale")
        values, tensors = kernel.pack(X, OUT, 4, 0.1, np.uint8(3))
        assert values == [X.data_ptr(), OUT.data_ptr(), 4, 0.1, 3] and tensors == [X, OUT]
        buffer, pack, pointers = kernel._buffer()
        pack(buffer, 0, *values)
        addresses = (ctypes.c_void_p * 5).from_address(pointers)
        read = [
            kind.from_address(address).value
            for kind, address in zip(
                (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_float, ctypes.c_ubyte), addresses
            )
        ]
        assert read == [X.data_ptr(), OUT.data_ptr(), 4, np.float32(0.1), 3]

    @pytest.mark.parametrize(
        ("args", "error", "words"),
        [
            ((X, OUT, 4, 1.0), TypeError, r"takes 5 arguments \(x, out, n, by, shift\); got 4"),
            ((X, OUT, 4, 1.0, 0, 0), TypeError, "got 6"),
            ((4, OUT, 4, 1.0, 0), TypeError, "'x' is a pointer to float; wanted a tensor, got int"),
            ((X, OUT.double(), 4, 1.0, 0), TypeError, "'out' points at float; wanted .*float32, got torch.float64"),
            ((X, OUT, 4.0, 1.0, 0), TypeError, "'n' is long long; wanted an integer, got float"),
            ((X, OUT, True, 1.0, 0), TypeError, "'n' is long long; wanted an integer, got bool"),
            ((X, OUT, np.int32(4), 1.0, 0), TypeError, "'n' is long long; wanted int64 .* got int32"),
            ((X, OUT, 4, np.float64(1.0), 0), TypeError, "'by' is float; wanted float32 .* got float64"),
            ((X, OUT, 4, "1", 0), TypeError, "'by' is float; wanted a number, got str"),
            ((X, OUT, X, 1.0, 0), TypeError, "'n' is long long; wanted an integer, got Tensor"),
            ((X, OUT, 4, 1.0, 256), ValueError, "'shift' is unsigned char, which cannot hold 256"),
            ((X, OUT, 4, 1.0, -1), ValueError, "cannot hold -1"),
            ((X, OUT, 2**63, 1.0, 0), ValueError, "cannot hold 9223372036854775808"),
            ((X, OUT, 4, 10**400, 0), ValueError, "'by' is float, which cannot hold this integer"),
            ((X.to_sparse(), OUT, 4, 1.0, 0), TypeError, "'x' is a tensor whose numbers are not those in its memory"),
            ((NEGATED, OUT, 4, 1.0, 0), TypeError, "'x' is a tensor whose numbers are not those in its memory"),
            ((np.ones(4, np.float32)[::-1], OUT, 4, 1.0, 0), TypeError, "'x' is an array with negative strides"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, args, error, words):
        with pytest.raises(error, match=f"^scale.*{words}"):
            Kernel(SCALE, "scale").pack(*args)

    def test_the_ends_of_every_integer(self):
        kernel = Kernel('extern "C" __global__ void f(int a, unsigned b, char c) {}', "f")
        assert kernel.pack(-(2**31), 2**32 - 1, 127)[0] == [-(2**31), 2**32 - 1, 127]
        with pytest.raises(ValueError, match="'a'"):
            kernel.pack(2**31, 0, 0)

    def test_a_half_that_is_too_large(self):
        with pytest.raises(ValueError, match="'x' is __half, which cannot hold 1e\\+06"):
            Kernel('extern "C" __global__ void f(half x) {}', "f").pack(1e6)

    @pytest.mark.parametrize(
        ("type", "taken"),
        [("unsigned*", torch.int32), ("unsigned*", torch.uint32), ("long*", torch.int64), ("float**", torch.int64),
         ("unsigned short*", torch.uint16), ("float4*", torch.float32), ("void*", torch.float32)],
    )  # fmt: skip
    def test_what_a_pointer_takes(self, type, taken):
        kernel = Kernel(f'extern "C" __global__ void f({type} x) {{}}', "f")
        assert kernel.pack(torch.zeros(2, dtype=taken))
        if type not in ("float4*", "void*"):
            with pytest.raises(TypeError, match=f"wanted a tensor of .*{taken}.*, got torch.float32"):
                kernel.pack(torch.zeros(2))

    @needs_nvrtc
    def test_what_the_compiler_sees_otherwise_is_refused(self, cache):
        """4 bytes would be passed as 8, the others left to chance."""
        source = """#if __cplusplus < 199711L
            typedef float number;
            #else
            struct number { double n; };
            #endif
            extern "C" __global__ void f(number n, int* x) { *x = n.n; }"""
        with pytest.raises(TypeError, match="'n' was read as float, and the compiler made it 8 bytes.*-DTYPE=float"):
            Kernel(source, "f").cubin("sm_90")

    def test_a_type_of_unknown_width_is_refused(self):
        with pytest.raises(TypeError, match="'n' has the type 'pair', whose size is not known"):
            Kernel('extern "C" __global__ void f(pair n) {}', "f").pack(3)

    def test_a_number_too_large_for_a_float_is_refused(self):
        kernel = Kernel('extern "C" __global__ void f(float a, double b) {}', "f")
        assert kernel.pack(3e38, 1e300)[0] == [3e38, 1e300] and kernel.pack(float("inf"), 0)[0][0] == float("inf")
        with pytest.raises(ValueError, match=r"parameter 'a' is float, which cannot hold 1e\+300"):
            kernel.pack(1e300, 1.0)

    def test_an_array_with_dlpack_is_taken_without_a_copy(self):
        array = np.ones(4, np.float32)
        assert Kernel(SCALE, "scale").pack(array, OUT, 4, 1.0, 0)[0][0] == array.ctypes.data

    @needs_nvrtc
    def test_the_layout_is_the_compilers_own(self):
        """Sizes as the cubin states them, so a type that is packed wrongly cannot pass."""
        types_ = "bool", "char", "short", "int", "unsigned", "long long", "float", "double", "size_t", "long"
        declared = ", ".join(f"{kind} p{i}" for i, kind in enumerate(types_)) + ", __half h, int* pointer"
        kernel = Kernel(f'#include <cuda_fp16.h>\nextern "C" __global__ void f({declared}) {{ *pointer = p0; }}', "f")
        codes = [code for code, _ in kernel._codes]
        assert [struct.calcsize(code) for code in codes] == cubin.parameter_sizes(kernel.cubin("sm_90"), "f")


@needs_nvrtc
class TestCompiling:
    def test_a_cubin_for_every_architecture(self, cache):
        for number in (75, 80, 86, 89, 90, 100, 120):
            assert cuda_cpp.compile(SCALE, f"sm_{number}")[:4] == b"\x7fELF"

    def test_a_mistake_is_shown_with_its_line(self, cache):
        with pytest.raises(CompileError, match=r"kernel.cu\(2\): error: identifier \"y\" is undefined") as caught:
            cuda_cpp.compile("__global__ void f(int* x) {\n    *x = y;\n}", "sm_90")
        assert "y" in caught.value.log and not list(cache.glob("*"))

    def test_a_header_of_cudas_own(self, cache):
        source = '#include <cuda_fp16.h>\n#include <cuda_bf16.h>\nextern "C" __global__ void f(__half* x) { x[0] = __float2half(1); }'
        assert cuda_cpp.compile(source, "sm_75")

    def test_without_headers_the_error_says_what_to_install(self, cache, monkeypatch):
        monkeypatch.setattr(cuda_cpp, "include_directory", lambda: None)
        with pytest.raises(CompileError, match="(?s)cuda_fp16.h.*no folder with them was found.*nvidia-cuda-runtime"):
            cuda_cpp.compile("#include <cuda_fp16.h>\n", "sm_90")

    def test_headers_from_memory_and_from_a_folder(self, cache, tmp_path):
        (tmp_path / "three.h").write_text("#define THREE 3\n")
        source = '#include "three.h"\n#include "two.h"\n__global__ void f(int* x) { *x = TWO * THREE; }'
        assert cuda_cpp.compile(source, "sm_90", headers={"two.h": "#define TWO 2"}, include_dirs=[tmp_path])
        assert not cache.exists(), "what is in a folder may change"

    @pytest.mark.parametrize("way", ["current folder", "include_dirs", "option"])
    def test_a_file_that_changes_is_compiled_anew(self, cache, tmp_path, monkeypatch, way):
        monkeypatch.chdir(tmp_path if way == "current folder" else "/")
        found = []
        for value in (1, 2):
            (tmp_path / "own.h").write_text(f"#define VALUE {value}\n")
            source = '#include "own.h"\n__global__ void f(int* x) { *x = VALUE; }'
            options = [f"-I{tmp_path}"] if way == "option" else []
            folders = [tmp_path] if way == "include_dirs" else []
            found.append(cuda_cpp.compile(source, "sm_90", options, include_dirs=folders))
        assert found[0] != found[1] and not cache.exists()

    def test_an_unknown_architecture_is_answered_with_the_known_ones(self, cache):
        with pytest.raises(ValueError, match="does not compile for 'sm_30'; it knows sm_75, sm_80"):
            cuda_cpp.compile(SCALE, "sm_30")

    @pytest.mark.parametrize("call", [{"arch": 90}, {"options": "-DX=1"}, {"options": [1]}, {"include_dirs": "folder"}])
    def test_arguments_of_the_wrong_kind(self, call):
        with pytest.raises(TypeError, match="^cuda_cpp.compile: "):
            cuda_cpp.compile(**{"source": SCALE, "arch": "sm_90", **call})

    @pytest.mark.parametrize("option", ["-arch=sm_80", "--gpu-architecture=compute_80"])
    def test_an_option_names_no_other_architecture(self, option):
        with pytest.raises(ValueError, match="the architecture is given by arch, here 'sm_90'"):
            cuda_cpp.compile(SCALE, "sm_90", [option])

    def test_parameters_that_a_macro_adds(self, cache):
        source = '#define MORE , int b\nextern "C" __global__ void f(float* a MORE) { a[0] = b; }'
        with pytest.raises(TypeError, match="read from the source is 1, and the compiler's is 2"):
            Kernel(source, "f").cubin("sm_90")

    def test_a_missing_library_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
        with pytest.raises(RuntimeError, match='To install it: pip install "cuda-bindings'):
            cuda_cpp._nvrtc.__wrapped__()

    def test_the_report(self, cache):
        made = Kernel(SCALE, "scale").report("sm_80")
        assert made.threads == 256 and 0 < made.registers <= 255 and made.spill_bytes == 0
        assert str(made).startswith("scale, compiled for sm_80 by NVRTC ")


@needs_nvrtc
class TestCache:
    def test_a_second_process_reads_what_the_first_compiled(self, cache, monkeypatch):
        first = cuda_cpp.compile(SCALE, "sm_90")
        (file,) = cache.glob("*.cubin")
        cuda_cpp._compiled.cache_clear()
        fake = types.SimpleNamespace(nvrtcCreateProgram=None)
        monkeypatch.setattr(cuda_cpp, "_nvrtc", lambda: fake)
        assert cuda_cpp.compile(SCALE, "sm_90") == first
        file.write_bytes(file.read_bytes()[:-1])
        cuda_cpp._compiled.cache_clear()
        with pytest.raises(TypeError):  # a damaged file is not believed, so the compiler is asked
            cuda_cpp.compile(SCALE, "sm_90")

    @pytest.mark.parametrize("change", [{"arch": "sm_80"}, {"options": ("-DX=1",)}, {"source": SCALE + "\n"},
                                        {"headers": {"a.h": ""}}], ids=lambda change: next(iter(change)))  # fmt: skip
    def test_anything_else_is_compiled_anew(self, cache, change):
        call = {"source": SCALE, "arch": "sm_90"}
        cuda_cpp.compile(**call)
        cuda_cpp.compile(**{**call, **change})
        assert len(list(cache.glob("*.cubin"))) == 2

    def test_a_folder_that_cannot_be_written_only_costs_time(self, cache, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setattr(trial, "cache_folder", lambda: tmp_path / "file")
        assert cuda_cpp.compile(SCALE, "sm_90")

    def test_one_kernel_for_one_source(self):
        assert cuda_cpp.kernel(SCALE, "scale") is cuda_cpp.kernel(SCALE, "scale", ())


class TestLaunch:
    """The driver's part is played by a stand-in that writes down what it is asked for."""

    @pytest.fixture
    def driver(self, monkeypatch):
        calls = []

        class Driver:
            current = 7

            class CUfunction_attribute:
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = "shared memory"

            CUstream = int

            def __getattr__(self, name):
                def call(*args):
                    calls.append((name, *args))
                    return (0,)

                return call

            def cuCtxGetCurrent(self):
                return 0, self.current

        return Driver(), calls

    def launch(self, monkeypatch, driver, grid=3, block=256, **keywords):
        kernel = Kernel(SCALE, "scale")
        kernel._loaded[1] = (driver, 7, "function", [cuda_cpp.STATIC_SHARED_MEMORY])
        monkeypatch.setattr(cuda_cpp, "_raw_stream", lambda index: 100 + index)
        monkeypatch.setattr(kernel, "_device", lambda tensors: types.SimpleNamespace(index=1))
        kernel.launch(grid, block, X, OUT, 4, 1.0, 0, **keywords)
        return kernel

    def test_on_the_tensors_device_and_torchs_stream(self, monkeypatch, driver):
        driver, calls = driver
        self.launch(monkeypatch, driver, (3, 2), (8, 4, 2))
        (call,) = calls
        assert call[:10] == ("cuLaunchKernel", "function", 3, 2, 1, 8, 4, 2, 0, 101)

    def test_another_current_context_is_put_back(self, monkeypatch, driver):
        driver, calls = driver
        driver.current = 0  # as in a thread of autograd's that has not touched CUDA yet
        self.launch(monkeypatch, driver)
        assert [name for name, *_ in calls] == ["cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]

    def test_more_than_48_kib_of_shared_memory_are_opted_in_once(self, monkeypatch, driver):
        driver, calls = driver
        kernel = self.launch(monkeypatch, driver, shared_memory=48 * 1024)
        assert [name for name, *_ in calls] == ["cuLaunchKernel"]
        for _ in range(2):
            kernel.launch(3, 256, X, OUT, 4, 1.0, 0, shared_memory=100_000)
        assert [name for name, *_ in calls[1:]] == ["cuFuncSetAttribute", "cuLaunchKernel", "cuLaunchKernel"]
        assert calls[1] == ("cuFuncSetAttribute", "function", "shared memory", 100_000)

    def test_another_threads_larger_limit_is_kept(self, monkeypatch, driver):
        driver, calls = driver
        kernel, limit = Kernel(SCALE, "scale"), [100_000]
        kernel._opt_in(driver, "function", limit, 60_000)
        assert limit == [100_000] and not calls

    def test_static_shared_memory_counts_too(self, monkeypatch, driver):
        driver, calls = driver
        bindings = types.SimpleNamespace(driver=driver)
        monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", bindings)
        type(driver).CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = "static"
        type(driver).cuFuncGetAttribute = lambda self, attribute, function: (
            0,
            40_000 if attribute == "static" else None,
        )
        type(driver).cuDevicePrimaryCtxRetain = lambda self, device: (0, 7)
        kernel = Kernel(SCALE, "scale")
        monkeypatch.setattr(kernel, "cubin", lambda arch: b"")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index: None)
        assert kernel._load(0)[3] == [48 * 1024 - 40_000]

    def test_every_thread_packs_into_memory_of_its_own(self):
        kernel, found, both_there = Kernel(SCALE, "scale"), [], threading.Barrier(2, timeout=60)

        def take():
            found.append(kernel._buffer()[2])
            both_there.wait()  # what a thread that has ended had may be given to the next

        other = threading.Thread(target=take)
        other.start()
        take()
        other.join()
        assert found[0] != found[1] and kernel._buffer()[2] in found

    @pytest.mark.parametrize(
        ("grid", "block", "error", "words"),
        [
            (0, 256, ValueError, "grid must be between"),
            ((1, 65_536), 256, ValueError, "grid must be between"),
            ((1, 1, 1, 1), 256, TypeError, "grid must be an int or a tuple"),
            (1, 1.5, TypeError, "block must be an int"),
            (1, (32, 64), ValueError, "at most 1024 threads"),
            (1, (1, 1, 65), ValueError, "block must be between"),
            (np.int64(0), 256, ValueError, "grid must be between"),
        ],
    )
    def test_sizes_that_no_device_takes(self, grid, block, error, words):
        with pytest.raises(error, match=words):
            Kernel(SCALE, "scale").launch(grid, block, X, OUT, 4, 1.0, 0)

    @pytest.mark.parametrize("bytes_", [-1, 1.5])
    def test_an_amount_of_shared_memory_that_is_none(self, bytes_):
        with pytest.raises(ValueError, match="shared_memory is a number of bytes"):
            Kernel(SCALE, "scale").launch(1, 256, X, OUT, 4, 1.0, 0, shared_memory=bytes_)

    def test_tensors_on_the_cpu_are_refused(self):
        with pytest.raises(ValueError, match="^scale: the tensors are on cpu, .* move them there"):
            Kernel(SCALE, "scale").launch(1, 256, X, OUT, 4, 1.0, 0)
