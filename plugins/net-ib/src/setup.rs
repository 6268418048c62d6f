//! How two ends come to a connection. The one that connects says hello over TCP, with its address
//! and the place where it waits for the answer; the other answers with its own; the first says that
//! it is ready, after which offers may come. That they are meant is proven by TCP's handles.

use crate::connection::{Ends, EndsAddress, IbReceiver, IbSender};
use crate::device::Device;
use crate::options::Options;
use crate::verbs::HINT;
use oxccl_net::tcp::Tcp;
use oxccl_net::{
    Connecting, Error, HANDLE_BYTES, Handle, Listener, Net, Receiver, Region, Request, Result,
    Sender,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// The device of [`Tcp`] for all of this: its first one.
const TCP_DEVICE: usize = 0;
/// The most bytes of a message of this.
const MESSAGE_BYTES: usize = 4096;
/// The version of what is said.
const PROTOCOL: &str = "oxccl-ib 2";

#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: String,
    /// The handle to connect to with the answer.
    answer_to: Vec<u8>,
    ends: EndsAddress,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    ends: std::result::Result<EndsAddress, String>,
}

#[derive(Serialize, Deserialize)]
struct Ready;

/// A message that is being sent.
struct Outbox {
    sender: Box<dyn Sender>,
    data: Vec<u8>,
    request: Option<Request>,
}

impl Outbox {
    fn new(sender: Box<dyn Sender>, message: &impl Serialize) -> Result<Self> {
        let data = serde_json::to_vec(message);
        let data = data.map_err(|e| Error::new("writing a message to connect", e, HINT))?;
        Ok(Self { sender, data, request: None })
    }

    /// Returns whether the message has been sent.
    fn progress(&mut self) -> Result<bool> {
        if self.request.is_none() {
            let (at, len) = (self.data.as_ptr(), self.data.len());
            // SAFETY: the data stay in place until the box is dropped, after the sender.
            self.request = unsafe { self.sender.isend(at, len, 0, Region::default())? };
        }
        self.request.map_or(Ok(false), |request| self.sender.test(request))
    }
}

/// A message that is being received.
struct Inbox {
    receiver: Box<dyn Receiver>,
    room: Vec<u8>,
    request: Option<Request>,
}

impl Inbox {
    fn new(receiver: Box<dyn Receiver>) -> Self {
        Self { receiver, room: vec![0; MESSAGE_BYTES], request: None }
    }

    /// Returns the message, once it is complete. Another one may follow.
    fn progress<M: DeserializeOwned>(&mut self) -> Result<Option<M>> {
        if self.request.is_none() {
            let (at, len) = (self.room.as_mut_ptr(), self.room.len());
            // SAFETY: the room stays in place until the box is dropped, after the receiver.
            self.request = unsafe { self.receiver.irecv(at, len, 0, Region::default())? };
        }
        let Some(request) = self.request else { return Ok(None) };
        let Some(len) = self.receiver.test(request)? else { return Ok(None) };
        self.request = None;
        let bad = |e| Error::new("reading a message to connect", e, HINT);
        serde_json::from_slice(&self.room[..len]).map(Some).map_err(bad)
    }
}

/// Makes a connection's handle and its listener.
pub(crate) fn listen(
    device: Arc<Device>,
    options: Arc<Options>,
    tcp: Arc<Tcp>,
) -> Result<(Handle, Box<dyn Listener>)> {
    let (handle, listener) = tcp.listen(TCP_DEVICE)?;
    let callers = VecDeque::new();
    Ok((handle, Box::new(IbListener { device, options, tcp, listener, callers })))
}

struct IbListener {
    device: Arc<Device>,
    options: Arc<Options>,
    tcp: Arc<Tcp>,
    listener: Box<dyn Listener>,
    callers: VecDeque<Caller>,
}

/// One who came to a listener.
struct Caller {
    inbox: Inbox,
    stage: Stage,
}

/// How far a caller is.
enum Stage {
    Hello,
    /// The way for the answer is being made.
    Calling(Box<dyn Connecting>, Answer, Result<Ends>),
    Answering(Outbox, Result<Ends>),
    Ready(Ends),
    Done,
}

impl Listener for IbListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        while let Some(receiver) = self.listener.accept()? {
            self.callers.push_back(Caller { inbox: Inbox::new(receiver), stage: Stage::Hello });
        }
        for _ in 0..self.callers.len() {
            let Some(mut caller) = self.callers.pop_front() else { break };
            // Where one that is meant fails, its connection will not come.
            match self.attend(&mut caller)? {
                None => self.callers.push_back(caller),
                Some(ends) => return Ok(Some(Box::new(IbReceiver::new(ends)))),
            }
        }
        Ok(None)
    }
}

impl IbListener {
    /// Goes on with a caller; returns the ends once they are connected.
    fn attend(&self, caller: &mut Caller) -> Result<Option<Ends>> {
        loop {
            caller.stage = match std::mem::replace(&mut caller.stage, Stage::Done) {
                Stage::Hello => match caller.inbox.progress::<Hello>()? {
                    Some(hello) => self.answer(&hello)?,
                    None => {
                        caller.stage = Stage::Hello;
                        return Ok(None);
                    }
                },
                Stage::Calling(mut calling, answer, ends) => match calling.progress()? {
                    Some(sender) => Stage::Answering(Outbox::new(sender, &answer)?, ends),
                    None => {
                        caller.stage = Stage::Calling(calling, answer, ends);
                        return Ok(None);
                    }
                },
                Stage::Answering(mut outbox, ends) => match outbox.progress()? {
                    true => Stage::Ready(ends?),
                    false => {
                        caller.stage = Stage::Answering(outbox, ends);
                        return Ok(None);
                    }
                },
                Stage::Ready(ends) => match caller.inbox.progress::<Ready>()? {
                    Some(Ready) => return Ok(Some(ends)),
                    None => {
                        caller.stage = Stage::Ready(ends);
                        return Ok(None);
                    }
                },
                Stage::Done => return Err(Error::new("accepting", "it has failed before", HINT)),
            };
        }
    }

    /// Makes this side's ends for one who says hello, or the text of why not.
    fn answer(&self, hello: &Hello) -> Result<Stage> {
        let make = || {
            if hello.protocol != PROTOCOL {
                let (theirs, own) = (&hello.protocol, PROTOCOL);
                let cause = format!("the peer speaks {theirs:?}, this side {own:?}");
                return Err(Error::new("accepting", cause, HINT));
            }
            let number = hello.ends.queue_pairs();
            let mut ends = Ends::new(&self.device, number, &self.options)?;
            ends.connect(&hello.ends, self.options.offer_traffic_class, &self.options)?;
            Ok(ends)
        };
        let ends: Result<Ends> = make();
        let told = ends.as_ref().map(Ends::address).map_err(ToString::to_string);
        let mut answer_to = [0; HANDLE_BYTES];
        let bad = || Error::new("accepting", "a bad address for the answer", HINT);
        let given = hello.answer_to.get(..HANDLE_BYTES).ok_or_else(bad)?;
        answer_to.copy_from_slice(given);
        let calling = self.tcp.connect(TCP_DEVICE, Handle(answer_to))?;
        Ok(Stage::Calling(calling, Answer { ends: told }, ends))
    }
}

/// Begins to connect to the listener of a handle.
pub(crate) fn connect(
    (device, options): (Arc<Device>, Arc<Options>),
    tcp: &Tcp,
    handle: Handle,
) -> Result<Box<dyn Connecting>> {
    let ends = Ends::new(&device, options.queue_pairs, &options)?;
    let (answer_to, listener) = tcp.listen(TCP_DEVICE)?;
    let (protocol, answer_to) = (PROTOCOL.to_owned(), answer_to.0.to_vec());
    let hello = Hello { protocol, answer_to, ends: ends.address() };
    let calling = tcp.connect(TCP_DEVICE, handle)?;
    let step = Step::Calling(calling, hello);
    Ok(Box::new(IbConnecting { options, ends: Some(ends), listener, caller: None, step }))
}

struct IbConnecting {
    options: Arc<Options>,
    ends: Option<Ends>,
    /// Where the answer comes.
    listener: Box<dyn Listener>,
    caller: Option<Inbox>,
    step: Step,
}

/// How far the one is who connects.
enum Step {
    Calling(Box<dyn Connecting>, Hello),
    Hello(Outbox),
    Answer(Box<dyn Sender>),
    Ready(Outbox),
    Done,
}

impl Connecting for IbConnecting {
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>> {
        loop {
            self.step = match std::mem::replace(&mut self.step, Step::Done) {
                Step::Calling(mut calling, hello) => match calling.progress()? {
                    Some(sender) => Step::Hello(Outbox::new(sender, &hello)?),
                    None => {
                        self.step = Step::Calling(calling, hello);
                        return Ok(None);
                    }
                },
                Step::Hello(mut outbox) => match outbox.progress()? {
                    true => Step::Answer(outbox.sender),
                    false => {
                        self.step = Step::Hello(outbox);
                        return Ok(None);
                    }
                },
                Step::Answer(sender) => match self.answer()? {
                    Some(peer) => {
                        let refused = |why| Error::new("connecting: the peer refused", why, HINT);
                        let peer = peer.map_err(refused)?;
                        let ends = self.ends.as_mut();
                        let ends = ends.ok_or_else(|| Error::new("connecting", "done", HINT))?;
                        ends.connect(&peer, self.options.traffic_class, &self.options)?;
                        Step::Ready(Outbox::new(sender, &Ready)?)
                    }
                    None => {
                        self.step = Step::Answer(sender);
                        return Ok(None);
                    }
                },
                Step::Ready(mut outbox) => {
                    if outbox.progress()? {
                        let made = self.ends.take().map(IbSender::new);
                        return Ok(made.map(|made| Box::new(made) as Box<dyn Sender>));
                    }
                    self.step = Step::Ready(outbox);
                    return Ok(None);
                }
                Step::Done => return Err(Error::new("connecting", "it has failed before", HINT)),
            };
        }
    }

    fn why(&self) -> String {
        match &self.step {
            Step::Calling(calling, _) => calling.why(),
            Step::Hello(..) => "the greeting is not sent".to_owned(),
            Step::Answer(..) => "the peer does not answer".to_owned(),
            Step::Ready(..) | Step::Done => "the connection is all but made".to_owned(),
        }
    }
}

impl IbConnecting {
    /// Returns the peer's answer once it has come.
    fn answer(&mut self) -> Result<Option<std::result::Result<EndsAddress, String>>> {
        if self.caller.is_none() {
            self.caller = self.listener.accept()?.map(Inbox::new);
        }
        let Some(caller) = &mut self.caller else { return Ok(None) };
        Ok(caller.progress::<Answer>()?.map(|answer| answer.ends))
    }
}
