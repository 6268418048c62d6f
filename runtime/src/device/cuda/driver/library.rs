//! The kernels, loaded once per process and made ready on each GPU.

use crate::device::cuda::driver::{Gpu, Relaxed, cu};
use crate::error::{Error, Result};
use crate::log::{self, Level, Subsystem};
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUlibrary, CUstream,
};
use oxccl_kernels::abi;
use oxccl_plan::DataType;
use std::ffi::CString;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, OnceLock};

/// A kernel on one GPU.
#[derive(Clone, Copy)]
pub struct Kernel {
    function: CUfunction,
    /// True if its blocks may be there before the kernel before it in its stream has ended: they
    /// wait for that themselves. What was compiled for GPUs that cannot do so does not.
    early: bool,
    /// True if its blocks stand on multiprocessors in clusters.
    clustered: bool,
}

impl Kernel {
    /// Returns the kernel with its blocks in clusters of [`CLUSTER_BLOCKS`]. The multiprocessors of
    /// a cluster are neighbours, and clusters are spread evenly over the GPU. Single blocks are
    /// not: the first eight stand side by side, and the links carry less (docs/performance.md).
    pub fn clustered(self) -> Self {
        Self { clustered: true, ..self }
    }
}

/// The thread blocks of a cluster: with four, the links carry most.
pub const CLUSTER_BLOCKS: u32 = 4;

/// Kernels that do the same with different elements.
pub struct Kernels {
    /// Those that reduce, by number of the element type.
    folding: [Kernel; DataType::ALL.len()],
    /// The one that only moves data.
    moving: Kernel,
}

impl Kernels {
    /// Returns the kernel that folds elements of a type, by its number, or the one that moves data.
    pub fn of(&self, folds: bool, dtype: usize) -> Kernel {
        if folds { self.folding[dtype] } else { self.moving }
    }
}

/// The kernels on one GPU.
pub struct Functions {
    /// Packet kernels, by number of the element type.
    pub packets: [Kernel; DataType::ALL.len()],
    /// Program kernels, by number of the element type.
    pub programs: [Kernel; DataType::ALL.len()],
    /// Edge kernels, by number of the element type.
    pub edges: [Kernel; DataType::ALL.len()],
    /// Kernels of lines and chunks between two ranks.
    pub lines_two: Kernels,
    /// Kernels of packets in lines between two ranks.
    pub packets_two: Kernels,
    /// Kernels of packets in lines between more ranks.
    pub more_packets: Kernels,
    /// Kernels of packets in lines between more ranks that reduce slices of medium size, by number
    /// of the element type.
    pub medium_packets: [Kernel; DataType::ALL.len()],
    /// Kernels of lines between more ranks.
    pub more_lines: Kernels,
    /// Kernels of collectives of a group between two ranks, for [`oxccl_kernels::abi::LineBatch`]:
    /// those of packets, and those of lines and chunks.
    pub batches_two: [Kernels; 2],
    /// The same between more ranks, and those of chunks.
    pub batches_more: [Kernels; 3],
    /// Kernels of chunks between more ranks.
    pub more_chunks: Kernels,
    /// Kernels of reduces in a chain, by number of the element type.
    pub chain: [Kernel; DataType::ALL.len()],
    /// The kernels of sends and receives, for [`oxccl_kernels::abi::FewMessages`] and for
    /// [`oxccl_kernels::abi::ManyMessages`].
    pub messages: [Kernel; 2],
    /// The same in lines.
    pub line_messages: [Kernel; 2],
    /// The kernel for [`oxccl_kernels::abi::Put`].
    pub put: Kernel,
    /// The kernel for [`oxccl_kernels::abi::SignalWait`].
    pub wait_signal: Kernel,
    /// The kernel that runs before copy engines, for [`oxccl_kernels::abi::Program`].
    pub expect: Kernel,
    /// Blocks of a kernel of sends and receives that a multiprocessor runs at a time.
    pub exchange_blocks: u32,
    /// The most blocks of a kernel of lines that the GPU runs at a time if they are in clusters; 0
    /// if it has none.
    pub clustered_blocks: u32,
}

// SAFETY: functions may be launched from any thread.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// The PTX version, 10 times that of the compute capability, from which on kernels wait themselves
/// for the kernel before them (`await_stream`).
const EARLY_PTX: i32 = 90;

struct Library(CUlibrary);
// SAFETY: a library may be used from any thread; it is never unloaded.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

fn library() -> Result<CUlibrary> {
    static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
    let load = || {
        let image = oxccl_kernels::FATBIN;
        if image.is_empty() {
            let what = "this build has no kernels for GPUs";
            return Err(Error::usage(
                what,
                "build it with nvcc of CUDA 13 on the path, or in $CUDA_HOME, and CUDAARCHS=all",
            ));
        }
        let mut library = null_mut();
        // SAFETY: the image is a fat binary; there are no options.
        unsafe {
            let image = image.as_ptr().cast();
            cu!(cuLibraryLoadData(
                &mut library,
                image,
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                0
            ))?;
        }
        Ok(Library(library))
    };
    LIBRARY.get_or_init(load).as_ref().map(|l| l.0).map_err(Clone::clone)
}

/// Returns the kernels, ready to be launched on a GPU. The first call for each GPU loads them
/// there.
pub fn functions(gpu: &'static Gpu) -> Result<&'static Functions> {
    static READY: Mutex<Vec<(i32, &'static Functions)>> = Mutex::new(Vec::new());
    let mut ready = READY.lock().unwrap_or_else(|e| e.into_inner());
    if let Some((_, functions)) = ready.iter().find(|(index, _)| *index == gpu.index) {
        return Ok(functions);
    }
    let _context = gpu.enter()?;
    let _relaxed = Relaxed::begin()?;
    let library = library()?;
    let function = |name: &str| -> Result<Kernel> {
        let name = CString::new(name).unwrap_or_default();
        let (mut kernel, mut function) = (null_mut(), null_mut());
        // SAFETY: a name, and places for the results.
        unsafe {
            cu!(cuLibraryGetKernel(&mut kernel, library, name.as_ptr()))?;
            // Loads the function now, and not within a call that may be captured.
            cu!(cuKernelGetFunction(&mut function, kernel))?;
        }
        let (mut made_for, attribute) = (0, CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION);
        // SAFETY: a place for the number, and a loaded function.
        unsafe { cu!(cuFuncGetAttribute(&mut made_for, attribute, function)) }?;
        let early = gpu.launches_early && made_for >= EARLY_PTX;
        Ok(Kernel { function, early, clustered: false })
    };
    let each = |prefix: &str| -> Result<[Kernel; DataType::ALL.len()]> {
        let none = Kernel { function: null_mut(), early: false, clustered: false };
        let mut all = [none; DataType::ALL.len()];
        for dtype in DataType::ALL {
            all[dtype as usize] = function(&format!("{prefix}{}", dtype as u8))?;
        }
        Ok(all)
    };
    let folding_or_moving = |name: &str| -> Result<Kernels> {
        Ok(Kernels { folding: each(&format!("{name}_"))?, moving: function(name)? })
    };
    let few_or_many = |end: &str| -> Result<[Kernel; 2]> {
        Ok([function(&format!("oxccl_few_{end}"))?, function(&format!("oxccl_many_{end}"))?])
    };
    let messages @ [few, many] = few_or_many("messages")?;
    let more_chunks = folding_or_moving("oxccl_more_chunks")?;
    let batch = |name: &str| folding_or_moving(&format!("oxccl_batch_{name}"));
    let functions = Functions {
        batches_two: [batch("packets_two")?, batch("lines_two")?],
        batches_more: [batch("more_packets")?, batch("more_lines")?, batch("more_chunks")?],
        packets: each("oxccl_packets_")?,
        programs: each("oxccl_program_")?,
        edges: each("oxccl_edges_")?,
        lines_two: folding_or_moving("oxccl_lines_two")?,
        packets_two: folding_or_moving("oxccl_packets_two")?,
        more_packets: folding_or_moving("oxccl_more_packets")?,
        medium_packets: each("oxccl_medium_packets_")?,
        more_lines: folding_or_moving("oxccl_more_lines")?,
        clustered_blocks: clustered_blocks(more_chunks.moving),
        more_chunks,
        chain: each("oxccl_chain_")?,
        messages,
        line_messages: few_or_many("messages_in_lines")?,
        put: function("oxccl_put")?,
        wait_signal: function("oxccl_wait_signal")?,
        expect: function("oxccl_expect")?,
        exchange_blocks: exchange_blocks(few)?.min(exchange_blocks(many)?),
    };
    let functions = &*Box::leak(Box::new(functions));
    ready.push((gpu.index, functions));
    Ok(functions)
}

/// Returns the number of blocks of a kernel of sends and receives that a multiprocessor runs at a
/// time.
fn exchange_blocks(kernel: Kernel) -> Result<u32> {
    let (mut blocks, threads) = (0, abi::EXCHANGE_THREADS as i32);
    // SAFETY: a place for the number, and a loaded function.
    unsafe {
        cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel.function, threads, 0))
    }?;
    Ok(blocks as u32)
}

/// Returns the most blocks of a kernel of lines that the GPU runs at a time in clusters.
fn clustered_blocks(kernel: Kernel) -> u32 {
    // What starts early was compiled for GPUs with clusters.
    if !kernel.early {
        return 0;
    }
    let (mut clusters, mut attributes) = (0, attributes());
    let shape = (CLUSTER_BLOCKS, abi::BLOCK_THREADS as u32);
    let config = config(shape, null_mut(), &mut attributes[1..]);
    // SAFETY: a place for the number, a loaded function, and attributes that live as long.
    let asked =
        unsafe { cu!(cuOccupancyMaxActiveClusters(&mut clusters, kernel.function, &config)) };
    match asked {
        Ok(()) => clusters as u32 * CLUSTER_BLOCKS,
        Err(error) => {
            let text = format!("thread blocks are not in clusters, which is slower: {error}");
            log::line(Level::Info, Subsystem::Init, &text);
            0
        }
    }
}

/// Returns the attributes of kernels that start early and whose blocks are in clusters.
fn attributes() -> [CUlaunchAttribute; 2] {
    let mut clusters = CUlaunchAttributeValue { pad: [0; 64] };
    clusters.clusterDim.x = CLUSTER_BLOCKS;
    clusters.clusterDim.y = 1;
    clusters.clusterDim.z = 1;
    let attribute = |id, value| CUlaunchAttribute { id, pad: Default::default(), value };
    [
        attribute(
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        ),
        attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, clusters),
    ]
}

/// Launches a kernel with one structure as its argument, and the address of the [`abi::Stamp`]s of
/// its blocks; 0 if nobody asks for their times.
///
/// # Safety
/// The kernel takes a `T`, and what `T` points to stays valid until the kernel has ended, as do the
/// stamps.
pub unsafe fn launch<T>(
    kernel: Kernel,
    (blocks, threads): (u32, u32),
    argument: &T,
    stamps: u64,
    stream: CUstream,
) -> Result<()> {
    let stamps = std::ptr::from_ref(&stamps).cast_mut().cast();
    let mut arguments = [std::ptr::from_ref(argument).cast_mut().cast(), stamps];
    let mut attributes = attributes();
    let which = usize::from(!kernel.early)..1 + usize::from(kernel.clustered);
    let config = config((blocks, threads), stream, &mut attributes[which]);
    let extra = null::<*mut std::ffi::c_void>().cast_mut();
    // SAFETY: by the contract of this function; the driver copies the argument.
    unsafe { cu!(cuLaunchKernelEx(&config, kernel.function, arguments.as_mut_ptr(), extra)) }
}

/// Returns what a launch of so many blocks of so many threads is, with these attributes.
fn config(
    (blocks, threads): (u32, u32),
    stream: CUstream,
    attributes: &mut [CUlaunchAttribute],
) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}
