// Command check verifies a c2sp.org/tlog-proof@v1 with Go's own implementation of signed notes and Merkle trees.
//
// usage: check <vkey file> <proof file> <leaf file>
package main

import (
	"encoding/base64"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	return string(data)
}

func hash(text string) (h tlog.Hash) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(data) != tlog.HashSize {
		log.Fatalf("not a hash: %q", text)
	}
	copy(h[:], data)
	return h
}

func main() {
	verifier, err := note.NewVerifier(strings.TrimSpace(read(os.Args[1])))
	if err != nil {
		log.Fatal(err)
	}
	head, checkpoint, found := strings.Cut(read(os.Args[2]), "\n\n")
	if !found {
		log.Fatal("no blank line")
	}
	lines := strings.Split(head, "\n")
	if lines[0] != "c2sp.org/tlog-proof@v1" {
		log.Fatalf("header %q", lines[0])
	}
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "index "), 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	var proof tlog.RecordProof
	for _, line := range lines[2:] {
		proof = append(proof, hash(line))
	}
	opened, err := note.Open([]byte(checkpoint), note.VerifierList(verifier))
	if err != nil {
		log.Fatal(err)
	}
	body := strings.Split(opened.Text, "\n")
	if body[0] != verifier.Name() {
		log.Fatalf("origin %q", body[0])
	}
	size, err := strconv.ParseInt(body[1], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	if err := tlog.CheckRecord(proof, size, hash(body[2]), index, tlog.RecordHash([]byte(read(os.Args[3])))); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("accepted: leaf %d of %d in %s\n", index, size, body[0])
}
