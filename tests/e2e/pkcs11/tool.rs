//! OpenSC's `pkcs11-tool`.

use std::collections::BTreeMap;

use ron_tests::{ok, pkcs11_module};

use super::{Rig, create, text};

impl Rig {
    fn tool(&self, args: &[&str]) -> String {
        let module = pkcs11_module();
        let mut all = vec!["--module", text(&module)];
        all.extend(args);
        self.run("pkcs11-tool", &all)
    }
}

#[test]
fn pkcs11_tool_lists_and_signs() {
    let rig = Rig::start();
    // A key that signs what this service parses is no object, and Ed25519 only where it was asked for.
    create(&rig.service, "ecdsa-p256", "any");
    create(&rig.service, "ed25519", "any");
    let slots = rig.tool(&["--list-slots"]);
    for part in [
        "token label        : web",
        "ron-kms acme/web",
        "rng, token initialized",
        "0/32",
    ] {
        assert!(slots.contains(part), "{part}: {slots}");
    }
    assert!(!slots.contains("login required"), "{slots}");
    let serial = slots
        .lines()
        .find_map(|line| line.trim().strip_prefix("serial num         : "));
    assert_eq!(serial.unwrap().len(), 16, "{slots}");
    let objects = rig.tool(&["--list-objects"]);
    assert_eq!(
        objects.matches("Private Key Object").count(),
        3,
        "{objects}"
    );
    assert_eq!(objects.matches("Public Key Object").count(), 3, "{objects}");
    assert!(objects.contains("never extractable"), "{objects}");

    std::fs::write(rig.at("input"), vec![7; 100_000]).unwrap();
    let pss = ["--hash-algorithm", "SHA256", "--salt-len", "32"];
    let mut made = BTreeMap::<_, u64>::new();
    for (label, mechanism, more) in [
        ("ec", "ECDSA-SHA256", &[][..]),
        ("ec", "ECDSA-SHA384", &[]),
        ("p384", "ECDSA-SHA384", &[]),
        ("rsa", "SHA512-RSA-PKCS", &[]),
        ("rsa", "SHA256-RSA-PKCS-PSS", &[]),
        ("rsa", "RSA-PKCS-PSS", &pss),
    ] {
        *made.entry(label).or_default() += 1;
        let (id, input) = (
            rig.id(label),
            if more.is_empty() { "input" } else { "hash" },
        );
        let hash = ron_crypto::hash::sha256(&vec![7; 100_000]);
        std::fs::write(rig.at("hash"), hash).unwrap();
        let mut args = vec![
            "--sign",
            "--id",
            &id,
            "-m",
            mechanism,
            "-i",
            input,
            "-o",
            "signature",
        ];
        args.extend(more);
        args.extend(
            ["--signature-format", "openssl"]
                .iter()
                .filter(|_| label != "rsa"),
        );
        rig.tool(&args);
        verify(&rig, label, mechanism);
        rig.logged(label, made[label]);
    }
    let last = rig.audit("tail");
    assert!(
        last.contains("\"context\":\"pkcs11 pkcs11-tool\""),
        "{last}"
    );
}

/// Plain OpenSSL verifies with the public key that the service publishes.
fn verify(rig: &Rig, label: &str, mechanism: &str) {
    let pem = ok(&rig.service.ron(&["get", rig.key(label), "--public", "pem"]));
    std::fs::write(rig.at("public.pem"), pem).unwrap();
    let hash = ["sha512", "sha384"]
        .into_iter()
        .find(|hash| mechanism.contains(&hash.to_uppercase()));
    let hash = format!("-{}", hash.unwrap_or("sha256"));
    let mut args = vec![
        "dgst",
        &hash,
        "-verify",
        "public.pem",
        "-signature",
        "signature",
    ];
    if mechanism.contains("PSS") {
        args.extend([
            "-sigopt",
            "rsa_padding_mode:pss",
            "-sigopt",
            "rsa_pss_saltlen:digest",
        ]);
    }
    args.push("input");
    assert!(rig.plain_openssl(&args).contains("Verified OK"));
}

#[test]
fn pkcs11_tool_tests_the_module() {
    let rig = Rig::start();
    let all = rig.output(
        "pkcs11-tool",
        &[
            "--module",
            text(&pkcs11_module()),
            "--login",
            "--pin",
            "1234",
            "--test",
        ],
    );
    let said = String::from_utf8_lossy(&all.stdout).into_owned();
    for part in [
        "seems to be OK",
        "all 4 digest functions seem to work",
        "SHA256: OK",
        "all 4 signature functions seem to work",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Its next test gives an RSA key a hash by SHA-1, and it ends when that is refused.
    let why = String::from_utf8_lossy(&all.stderr).into_owned();
    assert!(
        said.ends_with("RSA-PKCS: ") && why.contains("CKR_DATA_INVALID"),
        "{said} {why}"
    );
    // It goes through with a token that has no RSA key.
    let _ = ok(&rig.service.ron(&["retire", rig.key("rsa")]));
    let said = rig.tool(&["--login", "--pin", "1234", "--test"]);
    assert!(said.contains("No errors"), "{said}");
    // A PIN is no credential, and too long a one is refused: it may be a passport.
    let long = "x".repeat(33);
    let refused = rig.output(
        "pkcs11-tool",
        &[
            "--module",
            text(&pkcs11_module()),
            "--login",
            "--pin",
            &long,
            "--test",
        ],
    );
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("CKR_PIN_LEN_RANGE"), "{why}");
}

#[test]
fn each_purpose_is_a_token_and_ed25519_keys_are_shown_where_asked_for() {
    let rig = Rig::start();
    let ed25519 = create(&rig.service, "ed25519", "any");
    let (url, long) = (rig.url(), "p".repeat(40));
    let token = |purpose: &str, more: &str| {
        format!("[[token]]\ntenant = \"acme\"\npurpose = \"{purpose}\"\n{more}\n")
    };
    let tokens = token(&long, "") + &token("web", "ed25519 = true");
    std::fs::write(rig.at("pkcs11.toml"), format!("url = \"{url}\"\n{tokens}")).unwrap();
    let slots = rig.tool(&["--list-slots"]);
    let cut = ron_crypto::hash::sha256(format!("acme/{long}").as_bytes());
    let cut = format!("acme/{}-{}", &long[..18], &hex::encode(cut)[..8]);
    for label in [cut.as_str(), "acme/web"] {
        assert!(
            slots.contains(&format!("token label        : {label}\n")),
            "{slots}"
        );
    }
    let objects = rig.tool(&["--token-label", &cut, "--list-objects"]);
    assert!(!objects.contains("Key Object"), "{objects}");

    std::fs::write(rig.at("input"), "hello").unwrap();
    let id = ed25519.rsplit('/').next().unwrap().replace('-', "");
    let sign = [
        "--sign",
        "--id",
        &id,
        "-m",
        "EDDSA",
        "-i",
        "input",
        "-o",
        "signature",
    ];
    rig.tool(&[&["--token-label", "acme/web"][..], &sign].concat());
    let pem = ok(&rig.service.ron(&["get", &ed25519, "--public", "pem"]));
    std::fs::write(rig.at("public.pem"), pem).unwrap();
    rig.plain_openssl(&[
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        "public.pem",
        "-rawin",
        "-in",
        "input",
        "-sigfile",
        "signature",
    ]);

    // A mistake is explained on standard error, with the file.
    std::fs::write(
        rig.at("pkcs11.toml"),
        format!("url = \"http://localhost\"\n{tokens}"),
    )
    .unwrap();
    let refused = rig.output(
        "pkcs11-tool",
        &["--module", text(&pkcs11_module()), "--list-slots"],
    );
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        why.contains("pkcs11.toml: url: name the Unix socket"),
        "{why}"
    );
    assert!(why.contains("CKR_GENERAL_ERROR"), "{why}");
}
