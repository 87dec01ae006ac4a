//! Certificates for TLS, made by `openssl`.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::process::{Account, Folder, command, find, run};

const CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = steadfast
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1
extendedKeyUsage = serverAuth, clientAuth
[client]
basicConstraints = CA:FALSE
extendedKeyUsage = clientAuth
";

/// An authority with the certificate of a server (`localhost`, `127.0.0.1`) and of a client (`postgres`).
#[derive(Debug)]
pub(crate) struct Certificates {
    folder: Folder,
}

impl Certificates {
    /// Makes an authority and both certificates.
    pub(crate) fn new() -> Self {
        let folder = Folder::new("certificates");
        let of = Self { folder };
        fs::write(of.file("config"), CONFIG).unwrap();
        of.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3650",
        ])
        .run(&[
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-config",
            "config",
            "-extensions",
            "ca",
            "-subj",
            "/CN=authority",
        ]);
        of.certify("server", "/CN=localhost");
        of.certify("client", "/CN=postgres");
        for name in ["server.pem", "server.key", "ca.pem"] {
            Account::own(&of.file(name));
        }
        of
    }

    fn certify(&self, name: &str, subject: &str) {
        let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        self.openssl(&["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-config", "config"])
            .run(&["-keyout", &key, "-out", &request, "-subj", subject]);
        self.openssl(&["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"])
            .run(&["-days", "3650", "-out", &certificate, "-extfile", "config", "-extensions", name]);
    }

    fn openssl(&self, arguments: &[&str]) -> Openssl {
        let mut command = command(find("openssl", "STEADFAST_OPENSSL", &[], "Debian: `apt-get install openssl`"));
        command.current_dir(self.folder.path()).args(arguments);
        Openssl(command)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the file with the certificate of the authority.
    pub(crate) fn roots(&self) -> PathBuf {
        self.file("ca.pem")
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.file("server.pem")
    }

    pub(crate) fn server_key(&self) -> PathBuf {
        self.file("server.key")
    }

    pub(crate) fn client(&self) -> PathBuf {
        self.file("client.pem")
    }

    pub(crate) fn client_key(&self) -> PathBuf {
        self.file("client.key")
    }

    /// Returns the text of one of these files.
    pub(crate) fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }
}

struct Openssl(Command);

impl Openssl {
    #[track_caller]
    fn run(mut self, arguments: &[&str]) {
        run(self.0.args(arguments));
    }
}
