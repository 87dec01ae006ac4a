//! A pooler in front of PostgreSQL.
use std::{fs, net::TcpStream};

use super::{
    Postgres,
    process::{Account, Folder, Process, command, find, free_port},
};

/// A pgbouncer. In transaction mode each transaction may run on another connection of the server.
#[derive(Debug)]
pub(crate) struct Pgbouncer {
    process: Process,
    folder: Folder,
    port: u16,
}

impl Pgbouncer {
    /// Starts one in front of this server, with this number of connections to it.
    pub(crate) fn start(server: &Postgres, connections: usize) -> Self {
        Self::start_in("transaction", server, connections)
    }

    /// Same as [`start`](Self::start) in another mode, such as `session`.
    pub(crate) fn start_in(mode: &str, server: &Postgres, connections: usize) -> Self {
        Self::start_for(500, mode, server, connections)
    }

    /// Same as [`start_in`](Self::start_in) for this number of clients at most.
    pub(crate) fn start_for(clients: usize, mode: &str, server: &Postgres, connections: usize) -> Self {
        let folder = Folder::new("pgbouncer");
        let (process, port) = (Process::new("pgbouncer", folder.path()), free_port());
        let settings = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={} user=postgres\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = {mode}\n\
             default_pool_size = {connections}\n\
             max_client_conn = {clients}\n\
             server_lifetime = 5\n",
            server.port(),
        );
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, settings).unwrap();
        let install = "Debian: `apt-get install pgbouncer`";
        let mut command = command(find("pgbouncer", "STEADFAST_PGBOUNCER", &[], install));
        let pooler = Self { process, folder, port };
        let ready = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        pooler.process.start(Account::take(command.arg(&file)).current_dir("/"), ready);
        pooler
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns the last lines of its log.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }
}
