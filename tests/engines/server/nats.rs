//! NATS servers with JetStream, alone and as clusters.
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use super::{
    Certificates, PATIENCE, holds_within,
    process::{Folder, Process, command, find, free_port},
    wait_until,
};

/// A release of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    /// 2.12 or later: it has atomic batches, and lives of messages.
    Newest,
    /// 2.10, the oldest that is supported.
    Old,
}

/// A NATS server of its own.
#[derive(Debug)]
pub(crate) struct Nats {
    release: Release,
    process: Process,
    folder: Folder,
    port: u16,
    settings: Mutex<String>,
    /// `true` if it serves without the others of a cluster.
    is_alone: bool,
}

impl Nats {
    /// Returns the server that the tests of this process share: each uses a prefix of its own, and does not disturb it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Nats> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns the way to install the server as an error, if it is missing.
    pub(crate) fn installed() -> Result<(), String> {
        program(Release::Newest).map(drop)
    }

    /// Starts a server. It syncs its files every two minutes.
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// Starts a server of release 2.10, the oldest that is supported.
    pub(crate) fn old() -> Self {
        Self::of(Release::Old, free_port(), "", "", true)
    }

    /// Returns the server of release 2.10 that the tests of this process share.
    pub(crate) fn shared_old() -> &'static Self {
        static SHARED: OnceLock<Nats> = OnceLock::new();
        SHARED.get_or_init(Self::old)
    }

    /// Starts a server that syncs each write before its answer.
    pub(crate) fn durable() -> Self {
        Self::with_jetstream("sync_interval: always")
    }

    /// Starts a server with further settings of JetStream.
    pub(crate) fn with_jetstream(settings: &str) -> Self {
        Self::of(Release::Newest, free_port(), "", settings, true)
    }

    /// Starts a server with further settings.
    pub(crate) fn with(settings: &str) -> Self {
        Self::of(Release::Newest, free_port(), settings, "", true)
    }

    /// Starts a server that takes TLS with these certificates, and demands the client's.
    pub(crate) fn with_tls(certificates: &Certificates) -> Self {
        let (certificate, key, roots) = (certificates.server(), certificates.server_key(), certificates.roots());
        Self::with(&format!(
            "tls {{ cert_file: {certificate:?}\n key_file: {key:?}\n ca_file: {roots:?}\n verify: true }}\n"
        ))
    }

    fn of(release: Release, port: u16, settings: &str, jetstream: &str, is_alone: bool) -> Self {
        let folder = Folder::new("nats");
        let process = Process::new("nats-server", folder.path());
        let store = folder.path().join("jetstream");
        let jetstream = format!("jetstream {{ store_dir: {store:?}\n {jetstream}\n }}\n");
        // A test of JetStream's absence brings settings of its own.
        let jetstream = if settings.contains("jetstream") { String::new() } else { jetstream };
        let settings = format!("listen: \"127.0.0.1:{port}\"\nserver_name: n{port}\n{jetstream}{settings}\n");
        let settings = Mutex::new(settings);
        let server = Self { release, process, folder, port, settings, is_alone };
        server.start_again();
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the URL that leads there through a proxy at this port.
    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("nats://127.0.0.1:{port}")
    }

    /// Ends the server, and starts the newest release on its port and data, as an operator does.
    pub(crate) fn upgrade(&mut self) {
        self.shut_down();
        self.release = Release::Newest;
        self.start_again();
    }

    /// Starts the server on its port and data; it must not run. Returns when it takes requests.
    #[track_caller]
    pub(crate) fn start_again(&self) {
        let file = self.folder.path().join("nats.conf");
        fs::write(&file, &*self.settings.lock().unwrap()).unwrap();
        let mut command = command(program(self.release));
        command.arg("-c").arg(&file);
        self.process.start(&mut command, || self.is_ready());
    }

    /// Replaces a text of its settings; it takes effect when the server starts again.
    pub(crate) fn change(&self, from: &str, to: &str) {
        let mut settings = self.settings.lock().unwrap();
        assert!(settings.contains(from), "{settings}\nare without {from:?}");
        *settings = settings.replace(from, to);
    }

    fn is_ready(&self) -> bool {
        let Ok(info) = self.info() else { return false };
        // Without a login, and in a cluster, the greeting is all that one server tells.
        let is_open = !info.contains("\"auth_required\":true") && !info.contains("\"tls_required\":true");
        !self.is_alone
            || !is_open
            || !info.contains("\"jetstream\":true")
            || self.try_request("$JS.API.INFO", "").is_ok()
    }

    /// Returns the greeting of the server.
    fn info(&self) -> std::io::Result<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    }

    /// Sends a request over a connection of its own, and returns the answer.
    pub(crate) fn request(&self, subject: &str, body: &str) -> std::io::Result<String> {
        self.ask(subject, body, PATIENCE)
    }

    /// Same as [`request`](Self::request) for a server that may give no answer, and is asked again then.
    pub(crate) fn try_request(&self, subject: &str, body: &str) -> std::io::Result<String> {
        self.ask(subject, body, Duration::from_secs(2))
    }

    fn ask(&self, subject: &str, body: &str, patience: Duration) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(patience))?;
        let options = r#"{"verbose":false,"headers":true,"no_responders":true}"#;
        let length = body.len();
        write!(stream, "CONNECT {options}\r\nSUB reply 1\r\nPUB {subject} reply {length}\r\n{body}\r\n")?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if line.starts_with("HMSG") {
                return Err(std::io::Error::other("no responders"));
            }
            if line.starts_with("MSG ") {
                let length = line.trim_end().rsplit(' ').next().and_then(|length| length.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body)?;
                return Ok(String::from_utf8_lossy(&body).into_owned());
            }
        }
    }

    /// Asks the API of JetStream over a connection of its own, and returns its answer without an error.
    pub(crate) fn api(&self, call: &str, body: &str) -> serde_json::Value {
        let answer = self.request(&format!("$JS.API.{call}"), body).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["error"].is_null(), "{call}: {answer}");
        answer
    }

    /// Returns the names of its streams.
    pub(crate) fn streams(&self) -> Vec<String> {
        let names = self.request("$JS.API.STREAM.NAMES", "{}").unwrap_or_default();
        let names: serde_json::Value = serde_json::from_str(&names).unwrap_or_default();
        let names = names["streams"].as_array().cloned().unwrap_or_default();
        names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }

    /// Returns the name of the only stream whose name contains a text.
    pub(crate) fn stream(&self, part: &str) -> String {
        self.streams().into_iter().find(|name| name.contains(part)).unwrap()
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
}

/// A cluster of three servers.
#[derive(Debug)]
pub(crate) struct NatsCluster {
    servers: [Nats; 3],
}

impl NatsCluster {
    /// Returns the cluster that the tests of this process share.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<NatsCluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts three servers, and waits until they have a leader.
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// Starts three servers with further settings of the cluster. On a busy machine servers that start together now and then
    /// never learn of each other, so others are started then.
    pub(crate) fn with(settings: &str) -> Self {
        for _ in 0..3 {
            let cluster = Self::started(settings);
            match cluster.places_a_stream() {
                Ok(()) => return cluster,
                Err(why) => eprintln!("a cluster without a place for a stream: {why}, {:?}", cluster.logs()),
            }
        }
        panic!("no cluster of three places a stream");
    }

    fn started(settings: &str) -> Self {
        let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
        let routes: Vec<_> = ports.iter().map(|(_, port)| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let server = |at: usize| {
            let (port, of_cluster) = ports[at];
            let routes = routes.join(", ");
            let listen = format!("listen: \"127.0.0.1:{of_cluster}\"");
            // A name of its own: servers of another cluster try the ports of their dead for long.
            let settings =
                format!("cluster {{ name: C{}\n {listen}\n routes: [{routes}]\n {settings}\n }}\n", ports[0].1);
            Nats::of(Release::Newest, port, &settings, "", false)
        };
        Self { servers: [server(0), server(1), server(2)] }
    }

    /// Waits until there is a leader that knows the others.
    fn places_a_stream(&self) -> Result<(), String> {
        let probe = r#"{"name":"probe","subjects":["probe"],"num_replicas":3}"#;
        let mut told = String::new();
        let is_placed = holds_within(PATIENCE / 2, || {
            let created = self.servers[0].try_request("$JS.API.STREAM.CREATE.probe", probe);
            told = format!("{created:?}");
            let is_placed = created.is_ok_and(|answer| !answer.contains("\"error\""));
            is_placed && self.servers.iter().all(|server| server.try_request("$JS.API.INFO", "").is_ok())
        });
        if !is_placed {
            return Err(told);
        }
        wait_until("the stream is deleted", || self.servers[0].try_request("$JS.API.STREAM.DELETE.probe", "").is_ok());
        Ok(())
    }

    fn logs(&self) -> [String; 3] {
        self.servers.each_ref().map(Nats::log)
    }

    pub(crate) fn servers(&self) -> &[Nats; 3] {
        &self.servers
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("nats://{}", hosts.join(","))
    }

    /// Waits until all servers have what the leader of this stream has, so that any of them may go. Returns `false` if they do
    /// not within a minute: on a busy machine a server that came back may stay behind.
    pub(crate) fn catches_up(&self, stream: &str) -> bool {
        let mut info = String::new();
        let all = holds_within(PATIENCE, || {
            info = self.leader(stream).try_request(&format!("$JS.API.STREAM.INFO.{stream}"), "").unwrap_or_default();
            info.matches("\"current\":true").count() == 2 && !info.contains("\"offline\":true")
        });
        if !all {
            eprintln!("a cluster does not catch up: {info}");
        }
        all
    }

    /// Returns the server that leads a stream, once there is one.
    pub(crate) fn leader(&self, stream: &str) -> &Nats {
        let mut found = None;
        wait_until("the stream has a leader", || {
            let running = self.servers.iter().find(|server| server.is_running());
            let info = running.and_then(|server| server.try_request(&format!("$JS.API.STREAM.INFO.{stream}"), "").ok());
            let name = info.and_then(|info| Some(info.split_once("\"leader\":\"n")?.1.split_once('"')?.0.to_owned()));
            let port = name.and_then(|name| name.parse().ok());
            found = self.servers.iter().find(|server| Some(server.port) == port);
            found.is_some()
        });
        found.expect("it was found")
    }
}

/// Returns the path of a release's program, or the way to install it if it is missing or of another release.
fn program(release: Release) -> Result<PathBuf, String> {
    static FOUND: [OnceLock<Result<PathBuf, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    FOUND[release as usize].get_or_init(|| find_release(release)).clone()
}

fn find_release(release: Release) -> Result<PathBuf, String> {
    let (name, variable, wanted, install) = match release {
        Release::Newest => {
            let install = "2.12 or later: the package `nats-server` of Debian 14 (forky)";
            ("nats-server", "STEADFAST_NATS_SERVER", "2.12 or later", install)
        }
        Release::Old => {
            let install = "2.10, under this name: the package `nats-server` of Debian 13 (trixie)";
            ("nats-server-2.10", "STEADFAST_NATS_SERVER_OLD", "2.10", install)
        }
    };
    let install = format!("{install}; `.ci/run` fetches it, as does github.com/nats-io/nats-server/releases");
    let path = find(name, variable, &[], &install)?;
    let output =
        Command::new(&path).arg("--version").output().map_err(|error| format!("{}: {error}", path.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let fits = match (release, number(&version)) {
        (Release::Newest, Some(number)) => number >= (2, 12),
        (Release::Old, Some(number)) => number == (2, 10),
        (_, None) => false,
    };
    if !fits {
        let path = path.display();
        return Err(format!(
            "`{path}` is {version:?}, not {wanted}: install it ({install}), or set {variable} to its path"
        ));
    }
    Ok(path)
}

/// Returns the first two numbers of `nats-server: v2.15.1`.
fn number(version: &str) -> Option<(u32, u32)> {
    let numbers = version.rsplit('v').next()?;
    let mut parts = numbers.split('.').map_while(|part| part.parse().ok());
    Some((parts.next()?, parts.next()?))
}
