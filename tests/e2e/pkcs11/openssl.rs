//! OpenSSL through its engine: signatures, certificate requests, certificates and CMS, all verified by OpenSSL without it.

use super::{KEYS, Rig};

const ENGINE: [&str; 4] = ["-engine", "pkcs11", "-keyform", "engine"];

impl Rig {
    fn openssl(&self, what: &str, args: &[&str]) {
        self.run("openssl", &[&[what][..], &ENGINE, args].concat());
    }

    /// A self-signed certificate of the key, for `localhost`: `LABEL.crt`.
    pub(super) fn certificate(&self, label: &str) -> String {
        let (key, file) = (Self::uri(label, "private"), format!("{label}.crt"));
        let names = [
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ];
        let args = [
            "-new", "-x509", "-days", "30", "-sha256", "-key", &key, "-out", &file,
        ];
        self.openssl("req", &[&args[..], &names].concat());
        file
    }
}

#[test]
fn openssl_signs_through_its_engine() {
    let rig = Rig::start();
    std::fs::write(rig.at("input"), vec![7; 3_000_000]).unwrap();
    for (label, _) in KEYS {
        let (private, public) = (Rig::uri(label, "private"), Rig::uri(label, "public"));
        rig.run(
            "openssl",
            &[
                "pkey",
                "-engine",
                "pkcs11",
                "-inform",
                "engine",
                "-pubin",
                "-in",
                &public,
                "-pubout",
                "-out",
                "public.pem",
            ],
        );
        for hash in ["-sha256", "-sha384", "-sha512"] {
            rig.openssl(
                "dgst",
                &[hash, "-sign", &private, "-out", "signature", "input"],
            );
            let args = [
                "dgst",
                hash,
                "-verify",
                "public.pem",
                "-signature",
                "signature",
                "input",
            ];
            assert!(rig.plain_openssl(&args).contains("Verified OK"));
        }
        rig.openssl(
            "req",
            &[
                "-new",
                "-sha256",
                "-subj",
                "/CN=localhost",
                "-key",
                &private,
                "-out",
                "request",
            ],
        );
        rig.plain_openssl(&["req", "-verify", "-noout", "-in", "request"]);
        let file = rig.certificate(label);
        rig.plain_openssl(&["verify", "-check_ss_sig", "-CAfile", &file, &file]);
        rig.openssl(
            "cms",
            &[
                "-sign",
                "-binary",
                "-nodetach",
                "-in",
                "input",
                "-signer",
                &file,
                "-inkey",
                &private,
                "-outform",
                "DER",
                "-out",
                "message",
            ],
        );
        rig.plain_openssl(&[
            "cms", "-verify", "-binary", "-inform", "DER", "-in", "message", "-CAfile", &file,
            "-purpose", "any", "-out", "opened",
        ]);
        assert_eq!(std::fs::read(rig.at("opened")).unwrap(), vec![7; 3_000_000]);
        rig.logged(label, 6);
    }
}

#[test]
fn openssl_signs_with_rsa_pss_as_the_service_makes_it() {
    let rig = Rig::start();
    std::fs::write(rig.at("input"), "hello").unwrap();
    let private = Rig::uri("rsa", "private");
    rig.certificate("rsa");
    let pss = ["-sigopt", "rsa_padding_mode:pss", "-sigopt"];
    let sign = ["-sha384", "-sign", &private, "-out", "signature", "input"];
    rig.openssl(
        "dgst",
        &[&pss[..], &["rsa_pss_saltlen:digest"], &sign].concat(),
    );
    let public = rig.plain_openssl(&["x509", "-in", "rsa.crt", "-noout", "-pubkey"]);
    std::fs::write(rig.at("public.pem"), public).unwrap();
    let verify = [
        "dgst",
        "-sha384",
        "-verify",
        "public.pem",
        "-signature",
        "signature",
    ];
    let said =
        rig.plain_openssl(&[&verify[..], &pss, &["rsa_pss_saltlen:digest", "input"]].concat());
    assert!(said.contains("Verified OK"), "{said}");
    rig.logged("rsa", 2);
    // Another salt is refused before the service is asked; so is SHA-1.
    for args in [
        &[&pss[..], &["rsa_pss_saltlen:20"], &sign].concat()[..],
        &["-sha1", "-sign", &private, "input"],
    ] {
        let refused = rig.output("openssl", &[&["dgst"][..], &ENGINE, args].concat());
        assert!(!refused.status.success(), "{args:?}");
    }
    rig.logged("rsa", 2);
}
