//! The switch: a thread in the process of a group's first rank, with a connection to each rank. It
//! reads a message of each, folds them in rank order, and sends the result to all.

use crate::wire::{HEADER_BYTES, Header, LIMIT, SECRET_BYTES};
use oxccl_plan::arith;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a connection may take to say which rank it is.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two looks for ranks that have not come.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A switch, which ends when this is dropped.
pub(crate) struct Switch {
    /// The connections, by which the thread is ended.
    connections: Arc<Mutex<Connections>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Connections {
    open: Vec<TcpStream>,
    /// True once the switch ends: no rank is let in any more.
    ended: bool,
}

fn lock(connections: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    connections.lock().unwrap_or_else(|e| e.into_inner())
}

impl Switch {
    /// Starts the switch of a group of `nranks` ranks, which know the secret. Does not block.
    pub(crate) fn start(
        listener: TcpListener,
        secret: [u8; SECRET_BYTES],
        nranks: usize,
    ) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let connections = Arc::new(Mutex::new(Connections::default()));
        let shared = connections.clone();
        let body = move || {
            // Whatever ends the switch, the ranks see the end of their connections.
            let _ = serve(&listener, &secret, nranks, &shared);
            end(&shared);
        };
        let thread = std::thread::Builder::new().name("oxccl-switch".to_owned()).spawn(body)?;
        Ok(Self { connections, thread: Some(thread) })
    }
}

/// Ends all connections, after what was written to them.
fn end(connections: &Mutex<Connections>) {
    let mut connections = lock(connections);
    connections.ended = true;
    for connection in connections.open.drain(..) {
        let _ = connection.shutdown(Shutdown::Both);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        end(&self.connections);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    listener: &TcpListener,
    secret: &[u8; SECRET_BYTES],
    nranks: usize,
    connections: &Mutex<Connections>,
) -> Result<()> {
    let mut ranks = meet(listener, secret, nranks, connections)?;
    ranks.iter_mut().try_for_each(|rank| rank.write_all(&[1]))?;
    let mut inputs = vec![Vec::new(); nranks];
    loop {
        let mut first = None;
        for (rank, input) in ranks.iter_mut().zip(&mut inputs) {
            let mut bytes = [0; HEADER_BYTES];
            rank.read_exact(&mut bytes)?;
            let header = Header::decode(&bytes).ok_or(ErrorKind::InvalidData)?;
            if *first.get_or_insert(header) != header {
                return Err(Error::new(ErrorKind::InvalidData, "the calls of the ranks differ"));
            }
            input.resize(header.bytes(), 0);
            rank.read_exact(input)?;
        }
        let Some(Header { dtype, op, .. }) = first else { return Ok(()) };
        let operands: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        let result = arith::fold(dtype, op, &operands, None);
        // The first rank is the last to get it: its process may end the switch then.
        ranks.iter_mut().rev().try_for_each(|rank| rank.write_all(&result))?;
    }
}

/// Lets the ranks in; returns their connections, by rank.
fn meet(
    listener: &TcpListener,
    secret: &[u8; SECRET_BYTES],
    nranks: usize,
    connections: &Mutex<Connections>,
) -> Result<Vec<TcpStream>> {
    let (start, mut ranks, mut newcomers) = (Instant::now(), Vec::new(), Vec::new());
    ranks.resize_with(nranks, || None);
    while ranks.iter().any(Option::is_none) {
        if start.elapsed() > LIMIT || lock(connections).ended {
            return Err(ErrorKind::TimedOut.into());
        }
        match listener.accept() {
            Ok((connection, _)) => newcomers.push(Newcomer::new(connection)?),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK_AGAIN),
            Err(error) => return Err(error),
        }
        for mut newcomer in std::mem::take(&mut newcomers) {
            match newcomer.introduces_itself(secret, nranks) {
                Ok(Some(rank)) => {
                    newcomer.connection.set_nonblocking(false)?;
                    lock(connections).open.push(newcomer.connection.try_clone()?);
                    ranks[rank] = Some(newcomer.connection);
                }
                Ok(None) => newcomers.push(newcomer),
                Err(error) => {
                    let from = newcomer.connection.peer_addr();
                    let from = from.map_or_else(|e| e.to_string(), |address| address.to_string());
                    crate::warn(&format!("a connection from {from} is refused: {error}"));
                }
            }
        }
    }
    Ok(ranks.into_iter().flatten().collect())
}

/// A connection that has not said yet which rank it is.
struct Newcomer {
    connection: TcpStream,
    said: [u8; SECRET_BYTES + 4],
    len: usize,
    since: Instant,
}

impl Newcomer {
    fn new(connection: TcpStream) -> Result<Self> {
        connection.set_nonblocking(true)?;
        connection.set_nodelay(true)?;
        Ok(Self { connection, said: [0; SECRET_BYTES + 4], len: 0, since: Instant::now() })
    }

    /// Returns its rank once it has said that. Fails for a stranger, who does not know the secret,
    /// or says nothing.
    fn introduces_itself(
        &mut self,
        secret: &[u8; SECRET_BYTES],
        nranks: usize,
    ) -> Result<Option<usize>> {
        match self.connection.read(&mut self.said[self.len..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => self.len += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if self.len < self.said.len() {
            let late = self.since.elapsed() > PATIENCE;
            return if late { Err(ErrorKind::TimedOut.into()) } else { Ok(None) };
        }
        let [known @ .., a, b, c, d] = self.said;
        let rank = u32::from_le_bytes([a, b, c, d]) as usize;
        let different = known.iter().zip(secret).fold(0, |bits, (a, b)| bits | (a ^ b));
        match different == 0 && rank < nranks {
            true => Ok(Some(rank)),
            false => Err(ErrorKind::PermissionDenied.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Header;
    use oxccl_plan::{DataType, ReduceOp};

    const SECRET: [u8; SECRET_BYTES] = [5; SECRET_BYTES];

    /// Strangers come first: one that is silent, one that guesses, one of a rank that is not there.
    #[test]
    fn strangers_are_refused_and_the_ranks_served() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect(address).unwrap();
        let say = |mut to: &TcpStream, secret: &[u8], rank: u32| {
            to.write_all(&[secret, &rank.to_le_bytes()].concat()).unwrap();
        };
        let strangers = [connect(), connect(), connect()];
        say(&strangers[1], &[6; SECRET_BYTES], 0);
        say(&strangers[2], &SECRET, 2);
        let switch = Switch::start(listener, SECRET, 2).unwrap();
        let ranks = [connect(), connect()];
        for (number, rank) in (0..).zip(&ranks) {
            rank.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            say(rank, &SECRET, number);
        }
        let header = Header::new(2, DataType::Int32 as i32, ReduceOp::Sum as i32).unwrap();
        for (number, mut rank) in (0i32..).zip(&ranks) {
            rank.read_exact(&mut [0]).unwrap();
            let data = [1 + number, -5].map(i32::to_le_bytes).concat();
            rank.write_all(&[&header.encode()[..], &data].concat()).unwrap();
        }
        for mut rank in &ranks {
            let mut result = [0; 8];
            rank.read_exact(&mut result).unwrap();
            assert_eq!(result.as_slice(), [3, -10i32].map(i32::to_le_bytes).concat());
        }
        // The end of the switch is the end of the connections.
        drop(switch);
        assert_eq!((&ranks[1]).read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn calls_that_differ_end_the_group() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _switch = Switch::start(listener, SECRET, 2).unwrap();
        let ranks = [0u32, 1].map(|number| {
            let mut rank = TcpStream::connect(address).unwrap();
            rank.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            rank.write_all(&[&SECRET[..], &number.to_le_bytes()].concat()).unwrap();
            rank
        });
        for (count, mut rank) in (1..).zip(&ranks) {
            rank.read_exact(&mut [0]).unwrap();
            rank.write_all(&Header::new(count, 0, 0).unwrap().encode()).unwrap();
            rank.write_all(&[7; 2][..count]).unwrap();
        }
        assert!(ranks.iter().all(|mut rank| !matches!(rank.read(&mut [0]), Ok(1))));
    }
}
