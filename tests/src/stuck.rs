//! Calls of several ranks that do not end, each for a known reason.

use oxccl_plan::{Collective, DataType, ReduceOp, Spec};
use oxccl_runtime::comm::{Communicator, Holder, Options};
use oxccl_runtime::device::host::event::Record;
use oxccl_runtime::device::host::stream::Stream;
use oxccl_runtime::device::host::task::Work;
use oxccl_runtime::op::{Call, Transfer};
use oxccl_runtime::{Result, group, recorder};
use std::sync::Arc;
use std::time::Duration;

/// Elements of each call.
const COUNT: usize = 1000;

/// A rank's buffers and its stream.
struct Caller {
    input: Vec<f32>,
    output: Vec<f32>,
    stream: Arc<Stream>,
}

impl Caller {
    fn new() -> Self {
        Self { input: vec![1.0; COUNT], output: vec![0.0; COUNT], stream: Stream::new() }
    }

    /// Calls a collective, without waiting for it.
    fn call(&mut self, comm: &Arc<Communicator>, collective: Collective, root: u32) -> Result<()> {
        let call = Call {
            spec: Spec::new(collective, comm.nranks(), root),
            input: self.input.as_ptr().cast(),
            output: self.output.as_mut_ptr().cast(),
            count: COUNT as u64,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            scale: None,
        };
        group::collective(comm, &call, &self.stream)
    }

    /// Sends bytes to a rank, or receives them, and waits.
    fn carry(&self, comm: &Arc<Communicator>, peer: u32, send: bool, bytes: usize) -> Result<()> {
        let mut all = vec![0.0f32; bytes / 4];
        let (data, dtype) = (all.as_mut_ptr().cast(), DataType::Float32);
        group::transfer(comm, Transfer { peer, send, data, bytes, dtype }, &self.stream)?;
        self.finish()
    }

    /// Waits for all calls.
    fn finish(&self) -> Result<()> {
        self.stream.synchronize(None).map(drop)
    }

    /// Calls a collective and waits for it.
    fn run(&mut self, comm: &Arc<Communicator>, collective: Collective, root: u32) -> Result<()> {
        self.call(comm, collective, root)?;
        self.finish()
    }

    /// Calls a collective again and again, with a pause before each, until one fails, and prints
    /// why.
    fn go_on(&mut self, comm: &Arc<Communicator>, pause: Option<Duration>) {
        loop {
            pause.into_iter().for_each(std::thread::sleep);
            if let Err(error) = self.run(comm, Collective::AllReduce, 0) {
                return println!("{error}");
            }
        }
    }
}

/// Never returns: the test ends the process.
fn outside() -> ! {
    loop {
        std::thread::park();
    }
}

/// Makes `calls` calls that end, says so, and comes to a standstill, in which the rank `victim` is
/// at fault: it makes no further call (`skip`) or another one (`other`), it splits no communicator
/// (`split`), its stream waits for something else (`stream`), it receives nothing of what it is
/// sent (`message`), it works for 20 ms before each call (`sleep`), it goes on until it is stopped
/// (`stop`), killed (`kill`) or cut off (`cut`), or ranks use two communicators in different orders
/// (`circle`), or the victim makes no call in a communicator of its own with the rank `root`
/// (`pair`), or ranks send large messages to each other before they receive (`cross`).
pub fn play(
    comm: &Arc<Communicator>,
    how: &str,
    victim: u32,
    (calls, root): (u32, u32),
) -> Result<()> {
    let mut caller = Caller::new();
    let is_victim = comm.rank() == victim;
    let second = (how == "circle").then(|| split(comm, 0)).transpose()?;
    let in_pair = |rank: u32| rank == victim || rank == root;
    let pair = match how {
        "pair" => split(comm, i32::from(in_pair(comm.rank()))).map(Some)?,
        _ => None,
    };
    for number in 0..calls {
        recorder::set_tag(u64::from(number) + 100);
        caller.run(comm, Collective::AllReduce, 0)?;
    }
    println!("running");
    match (how, is_victim) {
        ("skip", true) => outside(),
        ("skip", false) => caller.run(comm, Collective::AllReduce, 0)?,
        ("stream", true) => {
            // Nobody records the event.
            let never = Work::Wait(Arc::new(Record::default()));
            caller.stream.enqueue(never, true)?;
            caller.run(comm, Collective::Reduce, root)?;
        }
        ("stream", false) => caller.run(comm, Collective::Reduce, root)?,
        ("message" | "split", true) => outside(),
        ("split", false) => {
            split(comm, 0)?;
        }
        ("message", false) => caller.carry(comm, victim, false, COUNT * 4)?,
        // More than the slots between two ranks take in.
        ("cross", _) => caller.carry(comm, (comm.rank() + 1) % comm.nranks(), true, 64 << 20)?,
        ("other", _) => {
            let other = if is_victim { Collective::Broadcast } else { Collective::AllReduce };
            if let Err(error) = caller.run(comm, other, 0) {
                println!("{error}");
            }
        }
        ("pair", true) => outside(),
        ("pair", false) => {
            if let Some(pair) = pair.filter(|_| in_pair(comm.rank())) {
                caller.run(&pair, Collective::AllReduce, 0)?;
            }
        }
        ("sleep" | "stop" | "kill" | "cut", _) => {
            let pause = (how == "sleep" && is_victim).then_some(Duration::from_millis(20));
            caller.go_on(comm, pause);
        }
        ("circle", _) => {
            let second = second.expect("it was made");
            let order = if is_victim { [&second, comm] } else { [comm, &second] };
            for comm in order {
                caller.run(comm, Collective::AllReduce, 0)?;
            }
        }
        _ => panic!("unknown standstill {how:?}"),
    }
    // Those of whom nobody had to wait for the victim stay, too.
    outside()
}

/// Returns a communicator of the ranks of a colour.
fn split(comm: &Arc<Communicator>, colour: i32) -> Result<Arc<Communicator>> {
    let holder = Holder::new(comm.device(), Options::default());
    holder.make(&comm.split(colour, comm.rank() as i32))?;
    holder.ready().cloned()
}
