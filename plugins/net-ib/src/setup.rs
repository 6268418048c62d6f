//! How two ends come to a connection. The one that connects says hello over TCP, with its address
//! and the place where it waits for the answer; the other answers with its own; the first says that
//! it is ready, after which offers may come. Hello and answer prove with the listener's secret,
//! which is in its handle, that they are meant.

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
/// The place of the secret in a handle. The address before it ends with a zero.
const SECRET_AT: usize = 96;
/// The most bytes of a message of this.
const MESSAGE_BYTES: usize = 4096;
/// Those who may be saying hello at a listener at a time; strangers are among them.
const MOST_CALLERS: usize = 256;
/// The version of what is said.
const PROTOCOL: &str = "oxccl-ib 1";

type Secret = [u8; 16];

#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: String,
    secret: Secret,
    /// The handle to connect to with the answer.
    answer_to: Vec<u8>,
    ends: EndsAddress,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    secret: Secret,
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
    let (mut handle, listener) = tcp.listen(TCP_DEVICE)?;
    let mut secret = Secret::default();
    getrandom::fill(&mut secret).map_err(|e| Error::new("making a secret", e, HINT))?;
    if handle.0[SECRET_AT - 1..].iter().any(|byte| *byte != 0) {
        return Err(Error::new("listening", "the address is too long", HINT));
    }
    handle.0[SECRET_AT..][..secret.len()].copy_from_slice(&secret);
    let callers = VecDeque::new();
    Ok((handle, Box::new(IbListener { device, options, tcp, listener, secret, callers })))
}

struct IbListener {
    device: Arc<Device>,
    options: Arc<Options>,
    tcp: Arc<Tcp>,
    listener: Box<dyn Listener>,
    secret: Secret,
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

/// Why a caller is given up.
enum Trouble {
    /// It has not proven to be the one who is meant.
    Stranger,
    /// It has, and something went wrong.
    Member(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Member(error)
    }
}

impl Listener for IbListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        while let Some(receiver) = self.listener.accept()? {
            self.callers.push_back(Caller { inbox: Inbox::new(receiver), stage: Stage::Hello });
            let unknown = |caller: &Caller| matches!(caller.stage, Stage::Hello);
            let oldest = self.callers.iter().position(unknown);
            if let Some(oldest) = oldest.filter(|_| self.callers.len() > MOST_CALLERS) {
                self.callers.remove(oldest);
            }
        }
        for _ in 0..self.callers.len() {
            let Some(mut caller) = self.callers.pop_front() else { break };
            match self.attend(&mut caller) {
                Ok(None) => self.callers.push_back(caller),
                Ok(Some(ends)) => return Ok(Some(Box::new(IbReceiver::new(ends)))),
                Err(Trouble::Stranger) => {}
                // Nobody else knows the secret: the connection will not come.
                Err(Trouble::Member(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl IbListener {
    /// Goes on with a caller; returns the ends once they are connected.
    fn attend(&self, caller: &mut Caller) -> std::result::Result<Option<Ends>, Trouble> {
        loop {
            caller.stage = match std::mem::replace(&mut caller.stage, Stage::Done) {
                Stage::Hello => {
                    let hello = caller.inbox.progress::<Hello>();
                    let Some(hello) = hello.map_err(|_| Trouble::Stranger)? else {
                        caller.stage = Stage::Hello;
                        return Ok(None);
                    };
                    if hello.secret != self.secret {
                        return Err(Trouble::Stranger);
                    }
                    self.answer(&hello)?
                }
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
                Stage::Done => return Err(Trouble::Stranger),
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
            ends.connect(&hello.ends, &self.options)?;
            Ok(ends)
        };
        let ends: Result<Ends> = make();
        let told = ends.as_ref().map(Ends::address).map_err(ToString::to_string);
        let mut answer_to = [0; HANDLE_BYTES];
        let bad = || Error::new("accepting", "a bad address for the answer", HINT);
        let given = hello.answer_to.get(..HANDLE_BYTES).ok_or_else(bad)?;
        answer_to.copy_from_slice(given);
        let calling = self.tcp.connect(TCP_DEVICE, Handle(answer_to))?;
        Ok(Stage::Calling(calling, Answer { secret: self.secret, ends: told }, ends))
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
    let mut secret = Secret::default();
    secret.copy_from_slice(&handle.0[SECRET_AT..][..size_of::<Secret>()]);
    let hello = Hello {
        protocol: PROTOCOL.to_owned(),
        secret,
        answer_to: answer_to.0.to_vec(),
        ends: ends.address(),
    };
    let calling = tcp.connect(TCP_DEVICE, handle)?;
    let step = Step::Calling(calling, hello);
    Ok(Box::new(IbConnecting {
        options,
        ends: Some(ends),
        listener,
        callers: VecDeque::new(),
        step,
    }))
}

struct IbConnecting {
    options: Arc<Options>,
    ends: Option<Ends>,
    /// Where the answer comes.
    listener: Box<dyn Listener>,
    callers: VecDeque<Inbox>,
    step: Step,
}

/// How far the one is who connects.
enum Step {
    Calling(Box<dyn Connecting>, Hello),
    Hello(Outbox, Secret),
    Answer(Box<dyn Sender>, Secret),
    Ready(Outbox),
    Done,
}

impl Connecting for IbConnecting {
    fn progress(&mut self) -> Result<Option<Box<dyn Sender>>> {
        loop {
            self.step = match std::mem::replace(&mut self.step, Step::Done) {
                Step::Calling(mut calling, hello) => match calling.progress()? {
                    Some(sender) => Step::Hello(Outbox::new(sender, &hello)?, hello.secret),
                    None => {
                        self.step = Step::Calling(calling, hello);
                        return Ok(None);
                    }
                },
                Step::Hello(mut outbox, secret) => match outbox.progress()? {
                    true => Step::Answer(outbox.sender, secret),
                    false => {
                        self.step = Step::Hello(outbox, secret);
                        return Ok(None);
                    }
                },
                Step::Answer(sender, secret) => match self.answer(secret)? {
                    Some(peer) => {
                        let refused = |why| Error::new("connecting: the peer refused", why, HINT);
                        let peer = peer.map_err(refused)?;
                        let ends = self.ends.as_mut();
                        let ends = ends.ok_or_else(|| Error::new("connecting", "done", HINT))?;
                        ends.connect(&peer, &self.options)?;
                        Step::Ready(Outbox::new(sender, &Ready)?)
                    }
                    None => {
                        self.step = Step::Answer(sender, secret);
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
    /// Returns the peer's answer once it has come. Strangers are passed over.
    fn answer(
        &mut self,
        secret: Secret,
    ) -> Result<Option<std::result::Result<EndsAddress, String>>> {
        while let Some(receiver) = self.listener.accept()? {
            self.callers.push_back(Inbox::new(receiver));
            if self.callers.len() > MOST_CALLERS {
                self.callers.pop_front();
            }
        }
        let mut found = None;
        self.callers.retain_mut(|caller| match caller.progress::<Answer>() {
            Ok(None) => true,
            Ok(Some(answer)) => {
                if answer.secret == secret {
                    found = Some(answer.ends);
                }
                false
            }
            Err(_) => false,
        });
        Ok(found)
    }
}
