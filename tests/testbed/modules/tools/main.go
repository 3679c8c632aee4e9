// Command tools is the whole content of the test bed's own image: one static file without a base image, so that the
// cluster can be tested before anything else is built. It is also the sandbox ("pause") container of every pod.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: tools pause | print TEXT... | lookup NAME | get URL | serve ADDRESS TEXT")
	}
	switch command, rest := args[0], args[1:]; {
	case command == "pause":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
		<-stop
		return nil
	case command == "print":
		fmt.Println(strings.Join(rest, " "))
		return nil
	case command == "lookup" && len(rest) == 1:
		addresses, err := net.LookupHost(rest[0])
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(addresses, " "))
		return nil
	case command == "get" && len(rest) == 1:
		client := http.Client{Timeout: 5 * time.Second}
		answer, err := client.Get(rest[0])
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = io.Copy(os.Stdout, answer.Body)
		return err
	case command == "serve" && len(rest) == 2:
		return http.ListenAndServe(rest[0], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, rest[1])
		}))
	default:
		return fmt.Errorf("not a command, or a wrong number of arguments: %s", strings.Join(args, " "))
	}
}
