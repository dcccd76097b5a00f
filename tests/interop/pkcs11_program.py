"""A program that speaks PKCS#11 through ctypes, for tests/e2e/pkcs11.

pkcs11_program.py lines MODULE LABEL                    commands on standard input, a return value for each
pkcs11_program.py threads MODULE LABEL COUNT THREADS    signs and verifies COUNT times, and forks while it does
"""
import ctypes
import hashlib
import os
import signal
import sys
import threading
import time

NAMES = """Initialize Finalize GetInfo GetFunctionList GetSlotList GetSlotInfo GetTokenInfo GetMechanismList GetMechanismInfo InitToken
InitPIN SetPIN OpenSession CloseSession CloseAllSessions GetSessionInfo GetOperationState SetOperationState Login Logout CreateObject
CopyObject DestroyObject GetObjectSize GetAttributeValue SetAttributeValue FindObjectsInit FindObjects FindObjectsFinal EncryptInit
Encrypt EncryptUpdate EncryptFinal DecryptInit Decrypt DecryptUpdate DecryptFinal DigestInit Digest DigestUpdate DigestKey DigestFinal
SignInit Sign SignUpdate SignFinal SignRecoverInit SignRecover VerifyInit Verify VerifyUpdate VerifyFinal VerifyRecoverInit
VerifyRecover DigestEncryptUpdate DecryptDigestUpdate SignEncryptUpdate DecryptVerifyUpdate GenerateKey GenerateKeyPair WrapKey
UnwrapKey DeriveKey SeedRandom GenerateRandom GetFunctionStatus CancelFunction WaitForSlotEvent""".split()

OK, NOT_INITIALIZED, BUFFER_TOO_SMALL = 0, 0x190, 0x150
CKM_ECDSA, CKA_CLASS, CKA_LABEL, PUBLIC, PRIVATE = 0x1041, 0, 3, 2, 3
word = ctypes.c_ulong


class List(ctypes.Structure):
    _fields_ = [("version", ctypes.c_ubyte * 2), ("functions", ctypes.c_void_p * len(NAMES))]


class Attribute(ctypes.Structure):
    _fields_ = [("type", word), ("value", ctypes.c_void_p), ("length", word)]


class Mechanism(ctypes.Structure):
    _fields_ = [("type", word), ("parameter", ctypes.c_void_p), ("length", word)]


class Module:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        table = ctypes.POINTER(List)()
        assert self.library.C_GetFunctionList(ctypes.byref(table)) == OK
        # ctypes lets other threads run while a function of a CDLL does, so calls are really concurrent.
        make = lambda at: ctypes.CFUNCTYPE(word)(table.contents.functions[at])
        self.functions = {name: make(at) for at, name in enumerate(NAMES)}

    def call(self, name, *args):
        return self.functions[name](*args)

    def must(self, name, *args):
        value = self.call(name, *args)
        assert value == OK, f"C_{name}: {value:#x}"

    def session(self):
        handle = word()
        self.must("OpenSession", word(0), word(4), None, None, ctypes.byref(handle))
        return handle

    def find(self, session, kind, label):
        label = label.encode()
        kind = word(kind)
        text = ctypes.create_string_buffer(label, len(label))
        at = lambda thing: ctypes.cast(ctypes.pointer(thing), ctypes.c_void_p)
        template = (Attribute * 2)(
            Attribute(CKA_CLASS, at(kind), ctypes.sizeof(kind)), Attribute(CKA_LABEL, at(text), len(label))
        )
        value = self.call("FindObjectsInit", session, template, word(2))
        if value != OK:
            return value, None
        found, count = (word * 2)(), word()
        self.must("FindObjects", session, found, word(2), ctypes.byref(count))
        self.must("FindObjectsFinal", session)
        assert count.value <= 1, count
        return OK, word(found[0]) if count.value else None

    def sign(self, session, key, data):
        value = self.call("SignInit", session, ctypes.byref(Mechanism(CKM_ECDSA)), key)
        if value != OK:
            return value, b""
        room, length = ctypes.create_string_buffer(64), word(64)
        value = self.call("Sign", session, data, word(len(data)), room, ctypes.byref(length))
        return value, room.raw[: length.value] if value == OK else b""

    def verify(self, session, key, data, signature):
        self.must("VerifyInit", session, ctypes.byref(Mechanism(CKM_ECDSA)), key)
        return self.call("Verify", session, data, word(len(data)), signature, word(len(signature)))


def nulls(module, session):
    """Null pointers in all arguments of all functions, without and with a session. The program lives on."""
    ends, pointer_first = ["Initialize", "Finalize", "CloseSession", "CloseAllSessions"], ["GetInfo", "GetFunctionList"]
    for first, without in ((None, ends), (session, ends + pointer_first)):
        for name in NAMES:
            if name not in without:
                module.call(name, first, *[None] * 7)
    return module.call("GetFunctionList", None)


def lines(path, label):
    module = Module(path)
    module.must("Initialize", None)
    session = module.session()
    key = None
    for line in sys.stdin:
        command = line.strip()
        if command == "find":
            value, key = module.find(session, PRIVATE, label)
        elif command == "sign":
            value, _ = module.sign(session, key, hashlib.sha256(b"data").digest())
        elif command == "random":
            value = module.call("GenerateRandom", session, ctypes.create_string_buffer(16), word(16))
        elif command == "nulls":
            value = nulls(module, session)
        else:
            raise SystemExit(f"unknown command {command}")
        print(f"{value:#x}", flush=True)
    module.must("Finalize", None)


def one(module, session, keys, data):
    value, signature = module.sign(session, keys[0], data)
    assert value == OK, f"C_Sign: {value:#x}"
    assert module.verify(session, keys[1], data, signature) == OK
    wrong = bytes([signature[0] ^ 1]) + signature[1:]
    assert module.verify(session, keys[1], data, wrong) != OK


def opened(module, label):
    session = module.session()
    keys = [module.find(session, kind, label)[1] for kind in (PRIVATE, PUBLIC)]
    assert None not in keys
    return session, keys


def in_child(module, label, session, keys):
    """A child has nothing of its parent's, and may initialise the module for itself."""
    data = hashlib.sha256(b"child").digest()
    assert module.sign(session, keys[0], data)[0] == NOT_INITIALIZED
    assert module.call("Finalize", None) == NOT_INITIALIZED
    module.must("Initialize", None)
    one(module, *opened(module, label), data)
    module.must("Finalize", None)


def fork(module, label, session, keys):
    child = os.fork()
    if child == 0:
        # A child that waits for ever is ended, and fails the test.
        signal.alarm(120)
        try:
            in_child(module, label, session, keys)
            os._exit(0)
        except BaseException as why:
            print(f"in a child: {why!r}", file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def usage():
    """Resident bytes, open files, threads. A thread that was joined is still there for a moment."""
    tasks = lambda: len(os.listdir("/proc/self/task"))
    for _ in range(1000):
        if tasks() == 1:
            break
        time.sleep(0.01)
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096, len(os.listdir("/proc/self/fd")), tasks()


def threads(path, label, count, number):
    count, number = int(count), int(number)
    module = Module(path)
    module.must("Initialize", None)
    each, children, failed = count // number, [], []

    def work(which, each):
        try:
            session, keys = opened(module, label)
            for at in range(each):
                one(module, session, keys, hashlib.sha256(f"{which} {at}".encode()).digest())
                if which == 0 and at % max(each // 20, 1) == 0:
                    fork(module, label, session, keys)
                    children.append(at)
            module.must("CloseSession", session)
        except BaseException as why:
            failed.append(why)

    def together(each):
        running = [threading.Thread(target=work, args=(which, each)) for which in range(number)]
        [thread.start() for thread in running]
        [thread.join() for thread in running]
        assert not failed, failed

    # What is allocated once is allocated in the first fifth.
    together(each // 5)
    before = usage()
    together(each - each // 5)
    after = usage()
    print(f"before {before}, after {after}", file=sys.stderr)
    assert after[1] == before[1], "open files are left"
    assert after[2] == 1, "threads are left"
    assert after[0] - before[0] < 8 << 20, "memory grows"
    module.must("Finalize", None)
    assert module.call("Finalize", None) == NOT_INITIALIZED
    print(each * number + len(children))


if __name__ == "__main__":
    {"lines": lines, "threads": threads}[sys.argv[1]](*sys.argv[2:])
