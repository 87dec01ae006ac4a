//! Redis servers.
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use super::{
    Certificates, ServerClock,
    process::{Folder, Process, command, find, free_port},
    wait_until,
};

/// A Redis server of its own. It keeps nothing beyond its end unless it is started as [`durable`](Self::durable).
#[derive(Debug)]
pub(crate) struct Redis {
    process: Process,
    folder: Folder,
    port: u16,
    tls_port: Option<u16>,
    arguments: Mutex<Vec<String>>,
    clock: Option<&'static ServerClock>,
    is_sentinel: bool,
}

impl Redis {
    /// Returns the server that the tests of this process share: each uses a key prefix of its own, and does not disturb it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns the server that syncs each write, and that tests share as [`shared`](Self::shared).
    pub(crate) fn shared_durable() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(Self::durable)
    }

    /// Returns the way to install Redis as an error, if it is missing.
    pub(crate) fn installed() -> Result<(), String> {
        program().map(drop)
    }

    /// Starts a server.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server that syncs each write before its answer.
    pub(crate) fn durable() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no"])
    }

    /// Starts a server with further arguments.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        Self::of(None, None, arguments)
    }

    /// Starts a server with a wall clock of its own, which lives as long as this process.
    pub(crate) fn with_clock(arguments: &[&str]) -> (Self, &'static ServerClock) {
        let clock = &*Box::leak(Box::new(ServerClock::new()));
        (Self::of(None, Some(clock), arguments), clock)
    }

    /// Starts a server that takes TLS with these certificates at [`tls_port`](Self::tls_port), and demands the client's.
    pub(crate) fn with_tls(certificates: &Certificates, arguments: &[&str]) -> Self {
        let port = free_port();
        let (certificate, key, roots) = (certificates.server(), certificates.server_key(), certificates.roots());
        let port_text = port.to_string();
        let tls = ["--tls-port", &port_text, "--tls-cert-file", certificate.to_str().unwrap()];
        let files = ["--tls-key-file", key.to_str().unwrap(), "--tls-ca-cert-file", roots.to_str().unwrap()];
        Self::of(Some(port), None, &[&tls[..], &files, arguments].concat())
    }

    fn of(tls_port: Option<u16>, clock: Option<&'static ServerClock>, arguments: &[&str]) -> Self {
        let folder = Folder::new("redis");
        let process = Process::new("redis-server", folder.path());
        let arguments = Mutex::new(arguments.iter().map(|argument| (*argument).to_owned()).collect());
        let server = Self { process, folder, port: free_port(), tls_port, arguments, clock, is_sentinel: false };
        server.start_again();
        server
    }

    /// Starts a sentinel that watches this server as the service `jobs`. Two must agree that it is down, by default after an
    /// hour without an answer: a busy server is not replaced.
    pub(crate) fn sentinel(&self, settings: &[&str]) -> Self {
        let folder = Folder::new("sentinel");
        let process = Process::new("redis-server", folder.path());
        let sentinel = Self {
            process,
            folder,
            port: free_port(),
            tls_port: None,
            arguments: Mutex::default(),
            clock: None,
            is_sentinel: true,
        };
        let own = [
            format!("port {}", sentinel.port),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", sentinel.folder.path().display()),
            format!("sentinel monitor jobs 127.0.0.1 {} 2", self.port),
            "sentinel down-after-milliseconds jobs 3600000".to_owned(),
            "sentinel failover-timeout jobs 5000".to_owned(),
            "sentinel parallel-syncs jobs 2".to_owned(),
        ];
        let lines: Vec<_> = own.iter().map(String::as_str).chain(settings.iter().copied()).collect();
        std::fs::write(sentinel.file(), lines.join("\n")).unwrap();
        sentinel.start_again();
        sentinel
    }

    /// The file in which a sentinel keeps its state.
    fn file(&self) -> PathBuf {
        self.folder.path().join("sentinel.conf")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn tls_port(&self) -> u16 {
        self.tls_port.expect("a server with TLS")
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the URL that leads there through a proxy at this port.
    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }

    /// Starts the server on its port and data; it must not run. Returns when it takes requests.
    #[track_caller]
    pub(crate) fn start_again(&self) {
        let mut command = command(program());
        if self.is_sentinel {
            command.arg(self.file()).arg("--sentinel");
            return self.process.start(&mut command, || self.is_ready());
        }
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        // A replica is served at once.
        command.args(["--repl-diskless-sync-delay", "0"]);
        command.arg("--dir").arg(self.folder.path()).args(&*self.arguments.lock().unwrap());
        if let Some(clock) = self.clock {
            clock.give(&mut command);
        }
        self.process.start(&mut command, || self.is_ready());
    }

    /// Adds arguments; they take effect when the server starts again.
    pub(crate) fn set(&self, arguments: &[&str]) {
        self.arguments.lock().unwrap().extend(arguments.iter().map(|argument| (*argument).to_owned()));
    }

    fn is_ready(&self) -> bool {
        // A server that demands a password says so when it is ready.
        let answer = self.try_command(&["PING"]);
        answer.is_ok_and(|answer| answer == "PONG" || answer.starts_with("NOAUTH") || answer.starts_with("NOPERM"))
    }

    /// Kills it with `kill -9`.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// Ends it as an operator does.
    pub(crate) fn shut_down(&self) {
        self.process.end("-TERM");
    }

    /// Kills it with `kill -9`, and starts it again.
    pub(crate) fn restart(&self) {
        self.kill();
        self.start_again();
    }

    /// Stops its process: connections stay open, and nothing answers.
    pub(crate) fn stop(&self) {
        self.process.stop();
    }

    /// Lets its process continue.
    pub(crate) fn cont(&self) {
        self.process.cont();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Returns the last lines of its log.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Sends one command over a connection of its own. Returns the answer as text, the parts of a list on a line each.
    #[track_caller]
    pub(crate) fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Sends one command of any bytes.
    #[track_caller]
    pub(crate) fn command_of_bytes(&self, words: &[&[u8]]) -> String {
        self.try_command_of_bytes(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn try_command(&self, words: &[&str]) -> std::io::Result<String> {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
        self.try_command_of_bytes(&words)
    }

    fn try_command_of_bytes(&self, words: &[&[u8]]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend([word, &b"\r\n"[..]].concat());
        }
        stream.write_all(&request)?;
        answer(&mut BufReader::new(stream))
    }

    /// Closes all connections of clients, those that subscribe included.
    pub(crate) fn cut(&self) {
        self.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        self.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }

    /// Starts a replica with these further arguments, and waits until it has a copy.
    pub(crate) fn replica(&self, arguments: &[&str]) -> Self {
        let port = self.port.to_string();
        let replica = Self::with(&[&["--replicaof", "127.0.0.1", &port], arguments].concat());
        wait_until("the replica has a copy", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
                && self.command(&["INFO", "replication"]).contains("state=online")
        });
        replica
    }

    /// Makes a replica the primary. End the old primary before.
    pub(crate) fn promote(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
    }
}

fn program() -> Result<PathBuf, String> {
    find("redis-server", "STEADFAST_REDIS_SERVER", &[], "Debian: `apt-get install redis-server`")
}

/// Reads one answer; an error is text, too.
fn answer(from: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let (kind, rest) = line.trim_end().split_at(1);
    let length: i64 = rest.parse().unwrap_or(-1);
    match kind {
        "$" if length >= 0 => {
            let mut body = vec![0; length as usize + 2];
            from.read_exact(&mut body)?;
            body.truncate(length as usize);
            Ok(String::from_utf8_lossy(&body).into_owned())
        }
        "*" if length >= 0 => Ok((0..length).map(|_| answer(from)).collect::<Result<Vec<_>, _>>()?.join("\n")),
        "$" | "*" => Ok(String::new()),
        _ => Ok(rest.to_owned()),
    }
}
