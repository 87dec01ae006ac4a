//! A TCP proxy in front of a server: it passes, delays, holds, cuts, and counts.
use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    pin::pin,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// A proxy on a port of its own. Dropping it closes all its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
}

/// One of the two directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

#[derive(Debug, Default)]
struct State {
    target: AtomicU16,
    is_refusing: AtomicBool,
    is_closed: AtomicBool,
    /// By direction: bytes, the delay in microseconds.
    bytes: [AtomicU64; 2],
    delay: [AtomicU64; 2],
    /// Number of times that a request followed a reply, or began a connection.
    round_trips: AtomicU64,
    accepted: AtomicU64,
    /// By direction: `true` while nothing passes.
    held: Mutex<[bool; 2]>,
    changed: Condvar,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    is_cut: AtomicBool,
    /// `true` if the last bytes were a reply.
    has_reply: AtomicBool,
}

impl Connection {
    fn cut(&self) {
        self.is_cut.store(true, SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Proxy {
    /// Starts a proxy to this port of loopback. Everything passes at once.
    pub(crate) fn start(target: u16) -> Self {
        let port = super::process::free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let state = Arc::new(State { target: AtomicU16::new(target), ..State::default() });
        let shared = state.clone();
        thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                if shared.is_closed.load(SeqCst) {
                    return;
                }
                shared.connect(number as u64, client);
            }
        });
        Self { port, state }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Leads new connections to another port; those that are open stay.
    pub(crate) fn lead_to(&self, target: u16) {
        self.state.target.store(target, SeqCst);
    }

    /// Closes all connections. New ones are accepted.
    pub(crate) fn cut(&self) {
        let connections: Vec<_> = self.state.connections.lock().unwrap().drain().collect();
        connections.iter().for_each(|(_, connection)| connection.cut());
        // Under the lock, so that no wait begins in between.
        let _held = self.state.held.lock().unwrap();
        self.state.changed.notify_all();
    }

    /// Closes new connections at once, or lets them pass again.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.state.is_refusing.store(refuses, SeqCst);
    }

    /// Lets nothing pass in both directions: a half-open connection. What was sent passes after [`pass`](Self::pass).
    pub(crate) fn hold(&self) {
        self.set_held([true; 2]);
    }

    /// Lets nothing pass in one direction: without replies, requests are done and their answers are missing.
    pub(crate) fn hold_lane(&self, lane: Lane) {
        self.state.held.lock().unwrap()[lane as usize] = true;
    }

    /// Lets everything pass again.
    pub(crate) fn pass(&self) {
        self.set_held([false; 2]);
        self.refuse(false);
    }

    /// Runs calls each in a task of its own, and returns what they return, in their order. They meet on any machine: nothing
    /// passes until each has begun.
    pub(crate) async fn meet<F>(&self, calls: impl IntoIterator<Item = F>) -> Vec<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.hold();
        let begun = Arc::new(AtomicUsize::new(0));
        let begin = |call: F| {
            let begun = begun.clone();
            tokio::spawn(async move {
                let (mut call, mut is_first) = (pin!(call), true);
                poll_fn(|cx| {
                    let polled = call.as_mut().poll(cx);
                    begun.fetch_add(usize::from(std::mem::take(&mut is_first)), SeqCst);
                    polled
                })
                .await
            })
        };
        let tasks: Vec<_> = calls.into_iter().map(begin).collect();
        while begun.load(SeqCst) < tasks.len() {
            super::look_again().await;
        }
        self.pass();
        let mut returned = Vec::new();
        for task in tasks {
            returned.push(task.await.unwrap());
        }
        returned
    }

    /// Waits until nothing has passed for a moment.
    pub(crate) async fn is_quiet(&self) {
        let bytes = || (self.bytes(Lane::Requests), self.bytes(Lane::Replies));
        let mut before = bytes();
        loop {
            super::pass(Duration::from_millis(50)).await;
            let now = bytes();
            if now == before {
                return;
            }
            before = now;
        }
    }

    fn set_held(&self, held: [bool; 2]) {
        *self.state.held.lock().unwrap() = held;
        self.state.changed.notify_all();
    }

    /// Delays what is sent from now on, in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state.delay.iter().for_each(|lane| lane.store(delay.as_micros() as u64, SeqCst));
    }

    /// Returns the number of bytes so far.
    pub(crate) fn bytes(&self, lane: Lane) -> u64 {
        self.state.bytes[lane as usize].load(SeqCst)
    }

    /// Returns the number of times so far that a request followed a reply, or began a connection.
    pub(crate) fn round_trips(&self) -> u64 {
        self.state.round_trips.load(SeqCst)
    }

    /// Returns the number of connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.state.accepted.load(SeqCst)
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.state.connections.lock().unwrap().len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.is_closed.store(true, SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.cut();
    }
}

impl State {
    fn connect(self: &Arc<Self>, number: u64, client: TcpStream) {
        let server = TcpStream::connect(("127.0.0.1", self.target.load(SeqCst)));
        let Ok(server) = server else { return };
        if self.is_refusing.load(SeqCst) {
            return;
        }
        self.accepted.fetch_add(1, SeqCst);
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (is_cut, has_reply) = (AtomicBool::new(false), AtomicBool::new(true));
        let connection = Arc::new(Connection { client, server, is_cut, has_reply });
        self.connections.lock().unwrap().insert(number, connection.clone());
        for lane in [Lane::Requests, Lane::Replies] {
            let (state, connection) = (self.clone(), connection.clone());
            let (sender, chunks) = mpsc::sync_channel(256);
            let writer = (self.clone(), connection.clone());
            thread::spawn(move || {
                writer.0.write(lane, &writer.1, chunks);
                writer.1.cut();
                writer.0.connections.lock().unwrap().remove(&number);
            });
            thread::spawn(move || state.read(lane, &connection, &sender));
        }
    }

    fn read(&self, lane: Lane, connection: &Connection, to: &mpsc::SyncSender<(Instant, Vec<u8>)>) {
        let from = if lane == Lane::Requests { &connection.client } else { &connection.server };
        let (mut from, mut buffer) = (from, vec![0; 1 << 16]);
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            self.bytes[lane as usize].fetch_add(read as u64, SeqCst);
            let had_reply = connection.has_reply.swap(lane == Lane::Replies, SeqCst);
            if lane == Lane::Requests && had_reply {
                self.round_trips.fetch_add(1, SeqCst);
            }
            let due = Instant::now() + Duration::from_micros(self.delay[lane as usize].load(SeqCst));
            if to.send((due, buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    }

    fn write(&self, lane: Lane, connection: &Connection, chunks: mpsc::Receiver<(Instant, Vec<u8>)>) {
        let to = if lane == Lane::Requests { &connection.server } else { &connection.client };
        let mut to = to;
        for (due, chunk) in chunks {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let held = self.held.lock().unwrap();
            // A cut ends the wait, too.
            let wait = |held: &mut [bool; 2]| held[lane as usize] && !connection.is_cut.load(SeqCst);
            drop(self.changed.wait_while(held, wait).unwrap());
            if connection.is_cut.load(SeqCst) || to.write_all(&chunk).is_err() {
                return;
            }
        }
    }
}
