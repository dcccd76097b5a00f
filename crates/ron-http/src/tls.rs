//! TLS 1.3 for servers and clients: certificates and keys from PEM files, the crypto provider, and
//! the contents of a client certificate.

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_kernel::Snapshot;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};
use zeroize::Zeroizing;

use crate::cert_time::not_after;
use crate::head::ClientCert;

/// Largest PEM file that is read, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Why certificates or keys cannot be used; names the file and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// A certificate chain and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The chain, its own certificate first, PEM.
    pub cert: PathBuf,
    /// The private key, PEM (PKCS#8, SEC1 or PKCS#1), readable by its owner only.
    pub key: PathBuf,
}

/// The files of a server's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// The server's certificate and key.
    pub identity: TlsIdentity,
    /// When set, clients need a certificate from one of these authorities, PEM.
    pub client_ca: Option<PathBuf>,
}

/// A server's TLS: version 1.3 only, hybrid X25519MLKEM768 preferred, no resumption. New
/// connections use the files as last loaded.
pub struct ServerTls {
    files: ServerTlsFiles,
    present: Snapshot<ServerConfig>,
}

impl ServerTls {
    /// Reads the files; refuses a key that others may read.
    pub fn load(files: ServerTlsFiles) -> Result<Arc<Self>, TlsError> {
        let present = Snapshot::from_arc(Arc::new(server_config(&files)?));
        Ok(Arc::new(Self { files, present }))
    }

    /// A session for a new connection.
    pub(crate) fn session(&self) -> Option<ServerConnection> {
        ServerConnection::new(self.present.load()).ok()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ServerTls({})", self.files.identity.cert.display())
    }
}

/// The files of a client's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// The only authorities that the client trusts, PEM.
    pub ca: PathBuf,
    /// The client's certificate and key, for servers that ask for one.
    pub identity: Option<TlsIdentity>,
}

/// A client's TLS, shared by its clones. New connections use the files as last loaded.
#[derive(Clone)]
pub struct ClientTls(Arc<Peers>);

struct Peers {
    files: ClientTlsFiles,
    present: Snapshot<ClientConfig>,
}

impl ClientTls {
    /// Reads the files; refuses a key that others may read.
    pub fn load(files: ClientTlsFiles) -> Result<Self, TlsError> {
        let present = Snapshot::from_arc(Arc::new(client_config(&files)?));
        Ok(Self(Arc::new(Peers { files, present })))
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.0.present.load()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientTls")
    }
}

/// Reads the files of all of them again. Their content is used from now on if all of it is valid;
/// on an error all keep what they had.
pub fn reload_tls(servers: &[&ServerTls], client: Option<&ClientTls>) -> Result<(), TlsError> {
    // Everything is read and checked before anything is stored: never half a reload.
    let served = servers
        .iter()
        .map(|tls| server_config(&tls.files).map(|new| (tls, new)));
    let served = served.collect::<Result<Vec<_>, _>>()?;
    let called = client.map(|tls| client_config(&tls.0.files).map(|new| (tls, new)));
    let called = called.transpose()?;
    for (tls, new) in served {
        tls.present.store(new);
    }
    if let Some((tls, new)) = called {
        tls.0.present.store(new);
    }
    Ok(())
}

/// aws-lc-rs, with the hybrid key exchange preferred.
fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::kx_group;
    Arc::new(CryptoProvider {
        kx_groups: vec![
            kx_group::X25519MLKEM768,
            kx_group::X25519,
            kx_group::SECP256R1,
            kx_group::SECP384R1,
        ],
        ..aws_lc_rs::default_provider()
    })
}

fn client_config(files: &ClientTlsFiles) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| TlsError(format!("TLS 1.3 is not available: {error}")))?
        .with_root_certificates(roots(&files.ca)?);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = read_identity(identity)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| mismatch(identity, &error))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn server_config(files: &ServerTlsFiles) -> Result<ServerConfig, TlsError> {
    let provider = provider();
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| TlsError(format!("TLS 1.3 is not available: {error}")))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(|error| TlsError(format!("{}: {error}", path.display())))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, key) = read_identity(&files.identity)?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| mismatch(&files.identity, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // No resumption: connections live long, and tickets would only make stolen state valuable.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn mismatch(identity: &TlsIdentity, error: &rustls::Error) -> TlsError {
    TlsError(format!(
        "{} and {} cannot be used together: {error}",
        identity.cert.display(),
        identity.key.display()
    ))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for cert in certificates(path)? {
        store
            .add(cert)
            .map_err(|error| TlsError(format!("{}: {error}", path.display())))?;
    }
    Ok(store)
}

/// The end of validity of each certificate in a PEM file, in Unix seconds, in the order of the file;
/// `None` when one of them is not X.509. A file without a certificate is an error.
pub fn certificate_ends(path: &Path) -> Result<Option<Vec<i64>>, TlsError> {
    let certificates = certificates(path)?;
    Ok(certificates
        .iter()
        .map(|der| not_after(der.as_ref()))
        .collect())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let name = path.display();
    let text = read(path)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certs {
        Ok(certs) if certs.is_empty() => Err(TlsError(format!("{name} holds no PEM certificate"))),
        Ok(certs) => Ok(certs),
        Err(_) => Err(TlsError(format!(
            "{name} is not a PEM file of certificates"
        ))),
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read_identity(identity: &TlsIdentity) -> Result<Identity, TlsError> {
    let name = identity.key.display();
    let meta =
        std::fs::metadata(&identity.key).map_err(|error| TlsError(format!("{name}: {error}")))?;
    if !ron_crypto::secret::is_private(&identity.key, &meta) {
        return Err(TlsError(format!(
            "the private key {name} can be read by others (mode {:04o}); run: chmod 600 {name}",
            meta.permissions().mode() & 0o7777
        )));
    }
    let chain = certificates(&identity.cert)?;
    let text = read(&identity.key)?;
    // The parser's own message could quote the key file.
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| TlsError(format!("{name} holds no PEM private key")))?;
    Ok((chain, key))
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    use std::io::Read as _;
    let name = path.display();
    let file = std::fs::File::open(path).map_err(|error| TlsError(format!("{name}: {error}")))?;
    // One allocation of the usual size: growth would leave copies of a key behind.
    let mut text = Zeroizing::new(Vec::with_capacity(64 << 10));
    file.take(PEM_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(|error| TlsError(format!("{name}: {error}")))?;
    if text.len() as u64 > PEM_BYTES_MAX {
        return Err(TlsError(format!("{name} is too large for a PEM file")));
    }
    Ok(text)
}

/// SHA-256 of a certificate, in hexadecimal.
fn print(cert: &CertificateDer<'_>) -> String {
    use std::fmt::Write as _;
    let mut sha256 = String::with_capacity(64);
    for byte in ron_crypto::hash::sha256(cert) {
        write!(sha256, "{byte:02x}").expect("writing to a String cannot fail");
    }
    sha256
}

/// The [`ClientCert::sha256`] that a client shows with the first certificate of this file.
pub fn certificate_print(path: &Path) -> Result<String, TlsError> {
    let certs = certificates(path)?;
    Ok(print(&certs[0]))
}

/// Checks that clients who call a server by this name or address accept the first certificate of the file for it.
pub fn certificate_is_for(path: &Path, host: &str) -> Result<(), TlsError> {
    let certs = certificates(path)?;
    let refused = |why: String| TlsError(format!("{} is not for {host}: {why}", path.display()));
    let name = ServerName::try_from(host).map_err(|e| refused(e.to_string()))?;
    let cert = webpki::EndEntityCert::try_from(&certs[0]).map_err(|e| refused(e.to_string()))?;
    cert.verify_is_valid_for_subject_name(&name)
        .map_err(|e| refused(e.to_string()))
}

/// The identity in a verified client certificate.
pub(crate) fn client_cert(cert: &CertificateDer<'_>) -> ClientCert {
    let sha256 = print(cert);
    let dns_names = webpki::EndEntityCert::try_from(cert)
        .map(|cert| cert.valid_dns_names().map(str::to_owned).collect())
        .unwrap_or_default();
    ClientCert { sha256, dns_names }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).expect("a file in the temporary directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
        path
    }

    #[test]
    fn files_are_checked_and_faults_name_them() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
        let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).expect("made");
        let cert = write(dir.path(), "cert.pem", &own.cert.pem(), 0o644);
        let key = write(
            dir.path(),
            "key.pem",
            &own.signing_key.serialize_pem(),
            0o600,
        );
        let check = |cert: &Path, key: &Path, ca: Option<&Path>, fault: &str| {
            let files = ServerTlsFiles {
                identity: TlsIdentity {
                    cert: cert.to_owned(),
                    key: key.to_owned(),
                },
                client_ca: ca.map(Path::to_owned),
            };
            match ServerTls::load(files) {
                Ok(_) => assert_eq!(fault, "", "loaded"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!fault.is_empty() && text.contains(fault), "{text}");
                }
            }
        };
        check(&cert, &key, None, "");
        check(&cert, &key, Some(&cert), "");
        let pem = own.signing_key.serialize_pem();
        for mode in [0o640, 0o604, 0o660, 0o610] {
            let open = write(dir.path(), "open.pem", &pem, mode);
            check(&cert, &open, None, "chmod 600");
            check(&cert, &open, None, "open.pem");
        }
        let foreign = write(
            dir.path(),
            "foreign.pem",
            &other.signing_key.serialize_pem(),
            0o600,
        );
        check(&cert, &foreign, None, "cannot be used together");
        check(&key, &key, None, "holds no PEM certificate");
        let empty = write(dir.path(), "empty.pem", "", 0o600);
        check(&cert, &empty, None, "holds no PEM private key");
        check(&cert, &key, Some(&empty), "empty.pem");
        check(&cert, &dir.path().join("none.pem"), None, "none.pem");
        check(&dir.path().join("none.pem"), &key, None, "none.pem");
    }

    /// The group that a handshake in memory agrees on.
    fn agreed(server: &ServerTls, client: Arc<ClientConfig>) -> rustls::NamedGroup {
        let mut server = server.session().expect("a session");
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
        let mut client = rustls::ClientConnection::new(client, name).expect("a session");
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).expect("a buffer");
            server.read_tls(&mut wire.as_slice()).expect("room");
            server.process_new_packets().expect("the client is trusted");
            let mut wire = Vec::new();
            server.write_tls(&mut wire).expect("a buffer");
            client.read_tls(&mut wire.as_slice()).expect("room");
            client.process_new_packets().expect("the server is trusted");
        }
        assert_eq!(
            client.protocol_version(),
            Some(rustls::ProtocolVersion::TLSv1_3)
        );
        let group = server.negotiated_key_exchange_group();
        group.expect("after the handshake").name()
    }

    #[test]
    fn the_hybrid_group_is_offered_first_and_classic_clients_are_served() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
        let cert = write(dir.path(), "cert.pem", &own.cert.pem(), 0o644);
        let key = write(
            dir.path(),
            "key.pem",
            &own.signing_key.serialize_pem(),
            0o600,
        );
        let identity = TlsIdentity {
            cert: cert.clone(),
            key,
        };
        let server = ServerTls::load(ServerTlsFiles {
            identity,
            client_ca: None,
        });
        let server = server.expect("good files");
        let ours = ClientTls::load(ClientTlsFiles {
            ca: cert.clone(),
            identity: None,
        });
        let ours = ours.expect("good files");
        let group = agreed(&server, ours.config());
        assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
        let classic = CryptoProvider {
            kx_groups: vec![aws_lc_rs::kx_group::X25519],
            ..aws_lc_rs::default_provider()
        };
        let classic = ClientConfig::builder_with_provider(Arc::new(classic))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots(&cert).expect("good file"))
            .with_no_client_auth();
        assert_eq!(
            agreed(&server, Arc::new(classic)),
            rustls::NamedGroup::X25519
        );
    }

    #[test]
    fn a_client_certificate_is_named_by_hash_and_dns_names() {
        let names = vec!["node-a.example".to_owned(), "node-b.example".to_owned()];
        let made = rcgen::generate_simple_self_signed(names.clone()).expect("made");
        let cert = client_cert(made.cert.der());
        assert_eq!(cert.dns_names, names);
        assert_eq!(cert.sha256.len(), 64);
        assert!(cert.sha256.bytes().all(|b| b.is_ascii_hexdigit()));
    }
}
