// Loads a compose file as `docker compose config` does, without an engine: syntax, interpolation from the environment, and
// references between services, configs, secrets, networks and volumes. Prints the project as YAML.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithOsEnv, cli.WithConsistency(true), cli.WithResolvedPaths(true))
	if err != nil {
		fail(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		fail(err)
	}
	text, err := project.MarshalYAML()
	if err != nil {
		fail(err)
	}
	os.Stdout.Write(text)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
