//! PostgreSQL servers: `initdb` once for each process, and copies of it.
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, OnceLock},
};

use super::{
    Certificates,
    process::{Account, Folder, Process, command, find, free_port, run},
    wait_until,
};

const INSTALL: &str = "Debian: `apt-get install postgresql`";

/// A PostgreSQL server of its own, with the superuser `postgres`, who needs no password.
#[derive(Debug)]
pub(crate) struct Postgres {
    process: Process,
    folder: Folder,
    port: u16,
    settings: Mutex<Vec<(String, String)>>,
}

impl Postgres {
    /// Returns the server that the tests of this process share: each uses a schema of its own, and does not disturb it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns the way to install PostgreSQL as an error, if it is missing.
    pub(crate) fn installed() -> Result<(), String> {
        ["initdb", "postgres", "pg_isready"].into_iter().try_for_each(|name| program(name).map(drop))
    }

    /// Starts a server.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further settings, as of `postgresql.conf`.
    pub(crate) fn with(settings: &[(&str, &str)]) -> Self {
        let folder = Folder::new("postgres");
        run(Command::new("cp").arg("-a").arg(template()).arg(folder.path().join("data")));
        let server = Self::of(folder, settings);
        server.start_again();
        server
    }

    /// Starts a server that takes TLS with these certificates; `hostssl all all all cert` demands the client's.
    pub(crate) fn with_tls(certificates: &Certificates, settings: &[(&str, &str)]) -> Self {
        let (certificate, key, roots) = (certificates.server(), certificates.server_key(), certificates.roots());
        let texts = [&certificate, &key, &roots].map(|path| path.to_str().unwrap().to_owned());
        let tls =
            [("ssl", "on"), ("ssl_cert_file", &texts[0]), ("ssl_key_file", &texts[1]), ("ssl_ca_file", &texts[2])];
        Self::with(&[&tls[..], settings].concat())
    }

    fn of(folder: Folder, settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let process = Process::new("postgres", folder.path());
        Self { process, folder, port: free_port(), settings: Mutex::new(settings) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns the URL that leads there through a proxy or a pooler at this port.
    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    /// Starts the server on its port and data; it must not run. Returns when it takes requests.
    #[track_caller]
    pub(crate) fn start_again(&self) {
        let mut command = command(program("postgres"));
        command.arg("-D").arg(self.folder.path().join("data")).args(["-p", &self.port.to_string()]);
        command.args([
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
            "-c",
            "max_connections=300",
            // What newer releases do, and release 13 does not.
            "-c",
            "password_encryption=scram-sha-256",
        ]);
        // In files of the data folder, which go with it.
        command.args(["-c", "dynamic_shared_memory_type=mmap"]);
        for (name, value) in &*self.settings.lock().unwrap() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        self.process.start(Account::take(&mut command).current_dir("/"), || self.is_ready());
    }

    /// Changes a setting; it takes effect when the server starts again.
    pub(crate) fn set(&self, name: &str, value: &str) {
        let mut settings = self.settings.lock().unwrap();
        settings.retain(|(other, _)| other != name);
        settings.push((name.to_owned(), value.to_owned()));
    }

    fn is_ready(&self) -> bool {
        let mut ask = command(program("pg_isready"));
        ask.args(["-q", "-h", "127.0.0.1", "-t", "10", "-p", &self.port.to_string()]);
        ask.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Kills all its processes with `kill -9`.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// Ends it as an operator does who waits for nobody (`pg_ctl stop -m fast`).
    pub(crate) fn shut_down(&self) {
        self.process.end("-INT");
    }

    /// Kills it with `kill -9`, and starts it again.
    pub(crate) fn restart(&self) {
        self.kill();
        self.start_again();
    }

    /// Stops all its processes: connections stay open, and nothing answers.
    pub(crate) fn stop(&self) {
        self.process.stop();
    }

    /// Lets its processes continue.
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

    /// Returns all lines of its log.
    pub(crate) fn whole_log(&self) -> String {
        self.process.whole_log()
    }

    /// Runs statements as the superuser; returns the rows, one on each line, their fields apart by `|`.
    #[track_caller]
    pub(crate) fn psql(&self, sql: &str) -> String {
        run(self.client().args(["-c", sql]))
    }

    /// Runs each line of a script by itself, so that statements work that no transaction may hold.
    pub(crate) fn client(&self) -> Command {
        let mut psql = command(program("psql"));
        psql.args(["-h", "127.0.0.1", "-U", "postgres", "-d", "postgres", "-XAtq", "-v", "ON_ERROR_STOP=1"]);
        psql.args(["-p", &self.port.to_string()]);
        psql
    }

    /// Sets who may connect and how (`pg_hba.conf`), for new connections.
    pub(crate) fn set_hba(&self, lines: &str) {
        // Read before the rules change: this client obeys them, too.
        fs::write(self.folder.path().join("data/pg_hba.conf"), lines).unwrap();
        self.reload();
    }

    /// Reads the configuration files again.
    pub(crate) fn reload(&self) {
        let mut pg_ctl = command(program("pg_ctl"));
        pg_ctl.arg("reload").arg("-D").arg(self.folder.path().join("data"));
        run(Account::take(&mut pg_ctl).current_dir("/"));
    }

    /// Closes all connections of clients other than the one that does it, and returns when they are closed.
    pub(crate) fn cut(&self) {
        let cut = self.psql(
            "select coalesce(string_agg(pid::text, ','), '0') from (select pid, pg_terminate_backend(pid) from pg_stat_activity \
             where backend_type = 'client backend' and pid <> pg_backend_pid()) as cut",
        );
        // Release 13 has no termination that waits.
        super::wait_until("the connections are closed", || {
            self.psql(&format!("select count(*) from pg_stat_activity where pid in ({cut})")) == "0"
        });
    }

    /// Starts a standby that follows this server under this name. It is synchronous from then on if `synchronous`.
    pub(crate) fn standby(&self, name: &str, synchronous: bool) -> Self {
        let folder = Folder::new("standby");
        let data = folder.path().join("data");
        let mut copy = command(program("pg_basebackup"));
        copy.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-U", "postgres", "-X", "stream", "-c", "fast"]);
        copy.args(["-p", &self.port.to_string()]);
        run(Account::take(&mut copy).current_dir("/"));
        let signal = data.join("standby.signal");
        fs::write(&signal, "").unwrap();
        Account::own(&signal);
        // Copied with the data, but not meant for it.
        let auto = data.join("postgresql.auto.conf");
        fs::write(&auto, "").unwrap();
        Account::own(&auto);
        let primary = format!("host=127.0.0.1 port={} user=postgres application_name={name}", self.port);
        let standby = Self::of(folder, &[]);
        standby.settings.lock().unwrap().extend(self.settings.lock().unwrap().iter().cloned());
        standby.set("primary_conninfo", &primary);
        standby.start_again();
        wait_until("the standby follows", || self.psql("select count(*) from pg_stat_replication") != "0");
        if synchronous {
            self.psql(&format!("alter system set synchronous_standby_names = '{name}'"));
            self.reload();
            wait_until("the standby is synchronous", || {
                self.psql("select string_agg(sync_state, ',') from pg_stat_replication") == "sync"
            });
        }
        standby
    }

    /// Makes a standby the primary; returns when it takes writes. End the old primary before.
    pub(crate) fn promote(&self) {
        self.psql("select pg_promote(true, 60)");
        wait_until("the standby is promoted", || self.psql("select pg_is_in_recovery()") == "f");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // At once, but with its shared memory released.
        self.process.end("-QUIT");
    }
}

/// Returns the path of one of PostgreSQL's programs: of the newest release, or of `STEADFAST_POSTGRES_BIN`.
pub(super) fn program(name: &str) -> Result<PathBuf, String> {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let folders = FOLDERS.get_or_init(|| {
        let releases = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path());
        let mut releases: Vec<_> = releases.collect();
        let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        releases.sort_by_key(|path| std::cmp::Reverse(number(path)));
        releases.into_iter().map(|release| release.join("bin")).collect()
    });
    find(name, "STEADFAST_POSTGRES_BIN", folders, INSTALL)
}

/// Returns the folder of a new data directory, of which servers take copies.
fn template() -> &'static PathBuf {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let folder = Folder::new("template");
        let data = folder.path().join("data");
        let mut initdb = command(program("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]);
        run(Account::take(&mut initdb).current_dir("/"));
        // The watcher deletes it.
        std::mem::forget(folder);
        data
    })
}
