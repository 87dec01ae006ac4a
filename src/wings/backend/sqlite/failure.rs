//! Conversion of errors of SQLite and of the file system into errors of a port.
//!
//! An error is permanent only if a retry cannot help. SQLite reports "unable to open" both for a
//! file without permissions and for a process without free file descriptors. The permissions are
//! therefore checked, and without proof the error is transient.
//!
//! | cause | kind | class |
//! |---|---|---|
//! | `SQLITE_BUSY`, `SQLITE_LOCKED`, `SQLITE_PROTOCOL`: another program holds a lock | `Throttled` | throttled |
//! | `SQLITE_FULL`, `ENOSPC`, `EDQUOT` | `Full` | throttled |
//! | `SQLITE_IOERR`, `SQLITE_NOMEM`, `SQLITE_INTERRUPT`, `SQLITE_SCHEMA`, `EIO`, `ENOMEM`, `EAGAIN`, `EINTR` | `Unavailable` | transient |
//! | `EMFILE`, `ENFILE`, and `SQLITE_CANTOPEN` where the permissions suffice | `Unavailable` | transient |
//! | `SQLITE_CANTOPEN` without permission, `SQLITE_PERM`, `SQLITE_AUTH`, `SQLITE_READONLY`, `EACCES`, `EPERM`, `EROFS`, a folder that is not there | `Denied` | permanent |
//! | `SQLITE_CORRUPT`, `SQLITE_NOTADB`, a file cut short | `Corrupt` | permanent |
//! | the file is no longer at its path | `Closed` | permanent |
//! | `SQLITE_TOOBIG`, a path that cannot be one | `Invalid` | permanent |
//! | any other | `Other` | permanent |
use std::{io::ErrorKind, path::Path};

use rusqlite::{ErrorCode, ffi};

use crate::port::{PortError, PortErrorKind};

/// Converts an error of SQLite about the database at this path.
pub(super) fn failure(path: &Path, error: rusqlite::Error) -> PortError {
    let kind = kind(path, &error);
    let what = match kind {
        PortErrorKind::Throttled => "another program holds the database's lock: ",
        PortErrorKind::Full => "the disk is full, or the database's page limit is reached: ",
        PortErrorKind::Corrupt => "the file is not a database, or it is damaged: ",
        PortErrorKind::Denied => "no permission to read and write the file and its folder: ",
        PortErrorKind::Closed => "the file was deleted or moved while it was open: ",
        _ => "",
    };
    PortError::new(kind, format!("sqlite: {}: {what}{error}", path.display())).with_source(error)
}

fn kind(path: &Path, error: &rusqlite::Error) -> PortErrorKind {
    let extended = error.sqlite_error().map(|error| error.extended_code);
    match error.sqlite_error_code() {
        _ if extended == Some(ffi::SQLITE_READONLY_DBMOVED) => PortErrorKind::Closed,
        _ if extended == Some(ffi::SQLITE_IOERR_SHORT_READ) => PortErrorKind::Corrupt,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => {
            PortErrorKind::Throttled
        }
        Some(ErrorCode::DiskFull) => PortErrorKind::Full,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => PortErrorKind::Corrupt,
        Some(ErrorCode::CannotOpen) if may_open(path) => PortErrorKind::Unavailable,
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => PortErrorKind::Denied,
        Some(ErrorCode::TooBig) => PortErrorKind::Invalid,
        Some(
            ErrorCode::OutOfMemory
            | ErrorCode::SystemIoFailure
            | ErrorCode::OperationInterrupted
            | ErrorCode::SchemaChanged,
        ) => PortErrorKind::Unavailable,
        _ => PortErrorKind::Other,
    }
}

/// Returns `false` if the file or its folder cannot be read and written, which is permanent.
///
/// This never opens the file: closing it would release SQLite's locks.
fn may_open(path: &Path) -> bool {
    let Some(folder) = path.parent() else { return false };
    #[cfg(unix)]
    {
        use rustix::{
            fs::{Access, access},
            io::Errno,
        };
        let permanent = |error: Errno| matches!(error, Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOTDIR);
        let folder = access(folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK);
        let file = access(path, Access::READ_OK | Access::WRITE_OK);
        // The file may not exist yet, but its folder must.
        !folder.is_err_and(|error| permanent(error) || error == Errno::NOENT) && !file.is_err_and(permanent)
    }
    #[cfg(not(unix))]
    {
        folder.is_dir() && !std::fs::metadata(path).is_ok_and(|found| found.is_dir() || found.permissions().readonly())
    }
}

/// Returns `true` if one write may have caused the error, so that the others of its group may
/// succeed without it. Locks and failures of the disk would affect each of them again.
pub(super) fn may_be_of_one_write(error: &rusqlite::Error) -> bool {
    match error.sqlite_error_code() {
        None => true, // a stored value of another type than expected, for example
        Some(code) => !matches!(
            code,
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::SystemIoFailure
                | ErrorCode::OutOfMemory
                | ErrorCode::OperationInterrupted
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::NotADatabase
        ),
    }
}

/// Converts an error of the file system at this path.
pub(super) fn file_failure(path: &Path, error: std::io::Error) -> PortError {
    let kind = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => PortErrorKind::Full,
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory => PortErrorKind::Denied,
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => PortErrorKind::Invalid,
        _ => PortErrorKind::Unavailable,
    };
    PortError::new(kind, format!("sqlite: {}: {error}", path.display())).with_source(error)
}
