//! What SQLite's errors mean for a port.
use rusqlite::ErrorCode;

use crate::port::{PortError, PortErrorKind};

/// An error of SQLite as one of the port: what it was about, and what to do.
pub(super) fn failure(error: rusqlite::Error) -> PortError {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => PortErrorKind::Throttled,
        Some(ErrorCode::DiskFull) => PortErrorKind::Full,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => PortErrorKind::Corrupt,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => PortErrorKind::Denied,
        Some(ErrorCode::TooBig) => PortErrorKind::Invalid,
        Some(ErrorCode::OutOfMemory | ErrorCode::SystemIoFailure) => PortErrorKind::Unavailable,
        _ => PortErrorKind::Other,
    };
    let message = match kind {
        PortErrorKind::Throttled => format!("sqlite: another program holds the database's lock: {error}"),
        PortErrorKind::Full => format!("sqlite: the disk is full, or the database's own bound is reached: {error}"),
        PortErrorKind::Corrupt => format!("sqlite: the file is no database, or damaged: {error}"),
        PortErrorKind::Denied => format!("sqlite: no leave to read and write the file and its folder: {error}"),
        _ => format!("sqlite: {error}"),
    };
    PortError::new(kind, message).with_source(error)
}

/// An error of the file system, at this path.
pub(super) fn file_failure(path: &std::path::Path, error: std::io::Error) -> PortError {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => PortErrorKind::Full,
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::PermissionDenied
        | std::io::ErrorKind::ReadOnlyFilesystem
        | std::io::ErrorKind::IsADirectory
        | std::io::ErrorKind::NotADirectory => PortErrorKind::Denied,
        _ => PortErrorKind::Unavailable,
    };
    PortError::new(kind, format!("sqlite: {}: {error}", path.display())).with_source(error)
}
